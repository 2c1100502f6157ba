"""The numbers that the examples take: one out of bounds is an error of argparse, not a traceback."""

import pytest
from common import example

LEAST = {  # program -> argument -> the least number it takes
    "bfs_labels_cnn": {"size": 2, "rounds": 1, "steps": 1, "batch": 1, "lr": 0},
    "distributed_sort_scan": {"sales": 0, "customers": 1},
    "graph_attention": {"clubs": 1, "epochs": 1},
    "graph_convolution": {"epochs": 1},
    "laplace_cg": {"size": 3},
    "maze_routing": {"rows": 1, "columns": 1, "layers": 1, "components": 0, "nets": 0},
    "race_lenet5": {"batches": 1, "repeats": 1, "batch": 1, "epochs": 1, "seeds": 1, "lr": 0},
    "sequence_classifier": {"epochs": 1, "batch": 1, "states": 1, "images": 5, "lr": 0},
    "train_lenet5": {"batch": 1, "epochs": 1, "lr": 0, "threads": 1},
}
CASES = [(name, option, least) for name, options in LEAST.items() for option, least in options.items()]

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:matplotlib")


@pytest.mark.parametrize("name, option, least", CASES, ids=[f"{name} --{option}" for name, option, _ in CASES])
def test_less_than_the_least_is_refused_by_name(capsys, name, option, least):
    main = example(name).main
    for less in range(-2, least):
        with pytest.raises(SystemExit) as stopped:
            main([f"--{option}", str(less)])
        assert stopped.value.code == 2
        assert f"argument --{option}: must be {least} or more, not {less}" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "name, options",
    [
        ("bfs_labels_cnn", ["--size", "2", "--rounds", "1", "--steps", "1", "--batch", "1", "--lr", "0"]),
        ("graph_attention", ["--clubs", "1", "--epochs", "1"]),
        ("graph_convolution", ["--epochs", "1"]),
        ("laplace_cg", ["--size", "3"]),
        ("maze_routing", ["--rows", "1", "--columns", "1", "--layers", "1", "--components", "0", "--nets", "0"]),
        ("sequence_classifier", ["--images", "5", "--epochs", "1", "--batch", "1", "--states", "1", "--lr", "0"]),
    ],
)
def test_the_least_numbers_will_do(tmp_path, capsys, name, options):
    main = example(name).main
    folder = name in ("bfs_labels_cnn", "maze_routing")
    main([*options, "--out", str(tmp_path if folder else tmp_path / "a.png")])
    assert list(tmp_path.rglob("*.png"))

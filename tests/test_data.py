"""IDX files, MNIST folders and scikit-learn's digits: what is read, and what is said of a file that is bad."""

import gzip
import math
import struct

import numpy as np
import pytest
import torch
from data_files import data_folder

from torch_patterns import data


def idx(shape, values=b"", *, code=0x08, zeros=b"\0\0"):
    return zeros + bytes([code, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + bytes(values)


def write(path, content, packed=False):
    path.write_bytes(gzip.compress(content) if packed else content)
    return path


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("shape", [(5,), (2, 3), (2, 3, 4), (0,), (0, 28, 28), (300, 2)], ids=str)
def test_read_idx_gives_the_bytes_in_row_major_order(tmp_path, shape, packed):
    expected = (np.arange(np.prod(shape)) % 256).astype(np.uint8).reshape(shape)
    tensor = data.read_idx(write(tmp_path / "named.anything", idx(shape, expected.tobytes()), packed))
    assert tensor.dtype == torch.uint8
    assert tensor.shape == shape
    assert np.array_equal(tensor.numpy(), expected)
    tensor.fill_(1)  # it owns writable memory


BAD_FILES = {
    "empty": (b"", "not an IDX file: it begins with nothing, not 00 00 08 0N"),
    "short": (b"\0\0\x08", "not an IDX file: it begins with 00 00 08, not 00 00 08 0N"),
    "text": (b"P5 28 28", "not an IDX file: it begins with 50 35 20 32, not 00 00 08 0N"),
    "little-endian": (b"\x03\x08\0\0" + bytes(12), "not an IDX file: it begins with 03 08 00 00, not 00 00 08 0N"),
    "no dimensions": (idx(()), "not an IDX file: it begins with 00 00 08 00, not 00 00 08 0N"),
    "float32": (idx((2,), bytes(8), code=0x0D), "type code 0x0D is not supported, only 0x08 (uint8)"),
    "int8": (idx((2,), bytes(2), code=0x09), "type code 0x09 is not supported, only 0x08 (uint8)"),
    "half a header": (idx((2, 3))[:10], "truncated: 10 bytes, where the header alone has 12"),
    "a byte short": (idx((2, 3), bytes(5)), "truncated: 17 bytes, where shape [2, 3] needs 18"),
    "a byte long": (idx((2, 3), bytes(7)), "trailing bytes: 19 bytes, where shape [2, 3] needs 18"),
    "vast": (
        idx((2**32 - 1,) * 3, b"x"),
        f"truncated: 17 bytes, where shape {[2**32 - 1] * 3} needs {16 + (2**32 - 1) ** 3}",
    ),
}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("name", BAD_FILES)
def test_read_idx_names_the_file_and_the_fault(tmp_path, name, packed):
    content, fault = BAD_FILES[name]
    path = write(tmp_path / "bad", content, packed)
    with pytest.raises(ValueError) as caught:
        data.read_idx(path)
    assert str(caught.value) == f"{path}: {fault}"


def test_read_idx_refuses_damaged_gzip(tmp_path):
    whole = gzip.compress(idx((100,), bytes(range(100))))
    damaged = {"cut": whole[:-9], "header only": whole[:2], "wrong sum": whole[:-8] + bytes(8)}
    damaged["flipped"] = whole[:20] + bytes([whole[20] ^ 0xFF]) + whole[21:]
    for name, content in damaged.items():
        with pytest.raises(ValueError, match=f"{name}: damaged or truncated gzip data"):
            data.read_idx(write(tmp_path / name, content))


def test_read_idx_refuses_what_is_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing"):
        data.read_idx(tmp_path / "missing")
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        data.read_idx(tmp_path)


def write_mnist(folder, *, train=3, test=2, packed=(), **replaced):
    """A folder in the form of MNIST; `replaced` gives other contents for a file, by the first two parts of its name."""
    files = {}
    for part, count in (("train", train), ("t10k", test)):
        images = (np.arange(count * 28 * 28) % 251).astype(np.uint8)
        files[f"{part}-images-idx3-ubyte"] = idx((count, 28, 28), images.tobytes())
        files[f"{part}-labels-idx1-ubyte"] = idx((count,), [i % 10 for i in range(count)])
    for name, content in files.items():
        content = replaced.get("_".join(name.split("-")[:2]), content)
        if content is not None:
            write(folder / (f"{name}.gz" if name in packed else name), content, name in packed)
    return folder


@pytest.mark.parametrize("packed", [(), ("train-images-idx3-ubyte", "t10k-labels-idx1-ubyte")], ids=["plain", "mixed"])
def test_mnist_pads_the_images_with_background(tmp_path, packed):
    digits = data.mnist(write_mnist(tmp_path, packed=packed))
    assert [tuple(t.shape) for t in digits] == [(3, 1, 32, 32), (3,), (2, 1, 32, 32), (2,)]
    assert [t.dtype for t in digits] == [torch.uint8, torch.int64] * 2
    inside = (torch.arange(3 * 28 * 28) % 251).view(3, 28, 28)
    assert torch.equal(digits.train_images[:, 0, 2:30, 2:30].long(), inside)
    assert digits.train_images.sum() == inside.sum()
    assert digits.train_labels.tolist() == [0, 1, 2]
    assert digits.test_labels.tolist() == [0, 1]


BAD_FOLDERS = {
    "count mismatch": ("t10k_labels", idx((3,), [1, 2, 3]), "t10k-labels-idx1-ubyte: 2 images need as many labels"),
    "label out of range": (
        "train_labels",
        idx((3,), [0, 10, 2]),
        "train-labels-idx1-ubyte: label 1 is 10, not a digit",
    ),
    "labels for images": ("train_images", idx((3,), [0, 1, 2]), r"train-images-idx3-ubyte: .* they are \[3\]"),
    "images for labels": ("train_labels", idx((3, 1), [0, 1, 2]), r"train-labels-idx1-ubyte: .* they are \[3, 1\]"),
    "other size": ("train_images", idx((1, 8, 8), bytes(64)), r"train-images-idx3-ubyte: .* they are \[1, 8, 8\]"),
    "no images": ("t10k_images", idx((0, 28, 28)), r"t10k-images-idx3-ubyte: .* they are \[0, 28, 28\]"),
    "truncated": ("t10k_images", idx((2, 28, 28), bytes(9)), "t10k-images-idx3-ubyte: truncated"),
}


@pytest.mark.parametrize("name", BAD_FOLDERS)
def test_mnist_names_the_bad_file(tmp_path, name):
    file, content, message = BAD_FOLDERS[name]
    with pytest.raises(ValueError, match=message):
        data.mnist(write_mnist(tmp_path, **{file: content}))


def test_mnist_names_the_missing_file(tmp_path):
    with pytest.raises(
        FileNotFoundError, match="neither t10k-images-idx3-ubyte nor t10k-images-idx3-ubyte.gz is there"
    ):
        data.mnist(write_mnist(tmp_path, t10k_images=None))
    with pytest.raises(FileNotFoundError, match="neither train-images-idx3-ubyte nor"):
        data.mnist(tmp_path / "no such folder")


def test_mnist_as_published():
    digits = data.mnist(data_folder("mnist"))
    assert [tuple(t.shape) for t in digits] == [(60000, 1, 32, 32), (60000,), (10000, 1, 32, 32), (10000,)]
    assert digits.train_labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert digits.test_labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    ink = digits.train_images.sum(dtype=torch.int64).item() / (60000 * 28 * 28 * 255)
    assert round(ink, 4) == 0.1307  # the mean that MNIST is usually normalized with


def test_digits_split_is_fixed_and_stratified():
    from sklearn.datasets import load_digits

    digits = data.digits()
    assert [tuple(t.shape) for t in digits] == [(1437, 1, 32, 32), (1437,), (360, 1, 32, 32), (360,)]
    assert [t.dtype for t in digits] == [torch.uint8, torch.int64] * 2
    assert all(torch.equal(a, b) for a, b in zip(digits, data.digits(), strict=True))
    whole = digits.train_labels.bincount() + digits.test_labels.bincount()
    assert whole.tolist() == np.bincount(load_digits().target).tolist()
    assert ((digits.test_labels.bincount() - whole / 5).abs() < 1).all()
    assert digits.test_labels[:12].tolist() == [7, 6, 3, 7, 7, 3, 2, 8, 9, 3, 2, 6]
    assert digits.train_images.amin() == 0
    assert digits.train_images.amax() == 255


def test_normalize_maps_background_and_ink():
    images = torch.tensor([0, 255], dtype=torch.uint8)
    assert data.normalize(images).dtype == torch.float32
    assert data.normalize(images).tolist() == pytest.approx([-0.1, 1.175], abs=1e-7)


def test_minibatches_are_digits_moved_a_little_by_seed_and_epoch_alone():
    images = torch.zeros(64, 1, 32, 32, dtype=torch.uint8)
    images[:, :, 14:18, 14:18] = 255

    def minibatches(seed, epoch):
        numbers = torch.tensor(seed), torch.tensor(epoch)
        return torch.ops.torch_patterns.lenet5_minibatches(images, torch.arange(64), *numbers)[0]

    assert torch.equal(minibatches(1, 3), minibatches(1, 3))
    assert not torch.equal(minibatches(1, 3), minibatches(2, 3))
    assert not torch.equal(minibatches(1, 3), minibatches(1, 4))
    moved = (minibatches(1, 3) + 0.1) * (255 / 1.275)
    assert moved.amin() >= -1e-4 and moved.amax() <= 255.001
    weights = moved.flatten(1) / moved.flatten(1).sum(1, keepdim=True)
    grid = torch.cartesian_prod(torch.arange(32.0), torch.arange(32.0)) - 15.5
    centres = weights @ grid
    assert centres.abs().amax() < 2 * (math.cos(math.radians(10)) + math.sin(math.radians(10))) / 0.9
    assert centres.std(0).amin() > 0.8  # uniform in -2..2: 1.15
    assert ((moved > 64).flatten(1).sum(1) - 16).abs().amax() <= 9

"""Containers that are NamedTuples for the sake of pytrees, and tuples in nothing else."""

from __future__ import annotations

from torch.utils.data._utils.collate import default_collate_fn_map

kinds: dict[str, list[type]] = {"Matrix": [], "Graph": []}  # what annotations call by these names
_SYMBOLS = {"__add__": "+", "__radd__": "+", "__mul__": "*", "__rmul__": "*"}


def not_a_sequence(cls: type, collate_fn: str = "list") -> None:
    """Has ``+`` and ``*`` of a NamedTuple raise where they would concatenate or repeat it, and so does torch's
    ``default_collate``, which would stack the fields of several. Its own indexing, length and iteration stay."""

    def refused(symbol: str):
        def operator(self, other):
            raise TypeError(f"{symbol} is not defined for {cls.__name__} and {type(other).__name__}")

        return operator

    for name, symbol in _SYMBOLS.items():
        if name not in vars(cls):
            setattr(cls, name, refused(symbol))
    # numpy's numbers and arrays leave operators with them to the container.
    cls.__array_ufunc__ = None  # type: ignore[attr-defined]

    def collate(batch, *, collate_fn_map=None):
        raise TypeError(f"default_collate: {cls.__name__} cannot be stacked; give DataLoader collate_fn={collate_fn}")

    default_collate_fn_map[cls] = collate

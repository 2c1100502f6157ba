"""Handwritten digits for LeNet-5: MNIST from its IDX files, and the smaller set that comes with scikit-learn.

Images stay uint8 [N, 1, 32, 32], 0 for background and 255 for ink, until a minibatch goes through `normalize`.
"""

import gzip
import math
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

CLASSES = 10
SIZE = 32


class Digits(NamedTuple):
    """A data set, one part for training and one for the test: images uint8 [N, 1, 32, 32], labels int64 [N], 0 to 9.

    Example:
        >>> tp.data.digits().test_labels.shape
        torch.Size([360])
    """

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor


def normalize(images: torch.Tensor) -> torch.Tensor:
    """Scales images from 0 ... 255 to -0.1 (background) ... 1.175 (ink), so that the mean of MNIST is near 0.

    Args:
        images: any shape and dtype, uint8 as a rule; values from 0 to 255.

    Returns:
        A float32 tensor of the shape of ``images``.

    Source: LeCun, Bottou, Bengio and Haffner, Gradient-based learning applied to document recognition (1998).

    Example:
        >>> tp.data.normalize(torch.tensor([0, 255], dtype=torch.uint8))
        tensor([-0.1000,  1.1750])
    """
    return images.float() * (1.275 / 255) - 0.1


def read_idx(path: str | Path) -> torch.Tensor:
    """Reads the tensor of an IDX file, the format of MNIST, whether or not the file is compressed by gzip.

    An IDX file of bytes holds two zero bytes, the type code 0x08, the number of dimensions, a big-endian uint32 size
    for each dimension, and the data.

    Args:
        path: the file; its name does not matter.

    Returns:
        A uint8 tensor on the CPU.

    Raises:
        ValueError: the file is not an IDX file of bytes, is damaged, or is too short or too long; the message names it.
        OSError: the file cannot be read.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "labels")
        >>> _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 3]))
        >>> tp.data.read_idx(path)
        tensor([7, 3], dtype=torch.uint8)
    """
    data = _unpack(path)
    if len(data) < 4 or data[:2] != b"\0\0" or data[3] == 0:
        raise ValueError(f"{path}: not an IDX file: it begins with {data[:4].hex(' ') or 'nothing'}, not 00 00 08 0N")
    if data[2] != 0x08:
        raise ValueError(f"{path}: type code 0x{data[2]:02X} is not supported, only 0x08 (uint8)")
    header = 4 + 4 * data[3]
    if len(data) < header:
        raise ValueError(f"{path}: truncated: {len(data)} bytes, where the header alone has {header}")
    shape = [int(size) for size in np.frombuffer(data, ">u4", count=data[3], offset=4)]
    expected = header + math.prod(shape)
    if len(data) != expected:
        fault = "truncated" if len(data) < expected else "trailing bytes"
        raise ValueError(f"{path}: {fault}: {len(data)} bytes, where shape {shape} needs {expected}")
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=header).reshape(shape))


def _unpack(path: str | Path) -> bytearray:
    """Returns the bytes of a file, unpacked if it begins with gzip's magic number; writable, so a tensor can share
    them."""
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        try:
            return bytearray(gzip.GzipFile(fileobj=file).read() if packed else file.read())
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path}: damaged or truncated gzip data: {error}") from error


def mnist(folder: str | Path) -> Digits:
    """Reads MNIST, or a set of its form, from the four files of the standard names in `folder`, with or without ".gz".

    The images of 28x28 pixels are padded to 32x32 with background.

    Args:
        folder: contains ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``, ``t10k-images-idx3-ubyte`` and
            ``t10k-labels-idx1-ubyte``, or these names with ``.gz``.

    Returns:
        :class:`Digits`, on the CPU.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is not as :func:`read_idx` expects, has another shape or no images, or not as many labels as
            images, or a label is not a digit. The message names the file.

    Example:
        >>> tp.data.mnist("no such folder")
        Traceback (most recent call last):
            ...
        FileNotFoundError: no such folder: neither train-images-idx3-ubyte nor train-images-idx3-ubyte.gz is there
    """
    return Digits(*_mnist_part(Path(folder), "train"), *_mnist_part(Path(folder), "t10k"))


def _mnist_part(folder: Path, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    images_path, labels_path = _find(folder, f"{part}-images-idx3-ubyte"), _find(folder, f"{part}-labels-idx1-ubyte")
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.dim() != 3 or tuple(images.shape[1:]) != (28, 28) or len(images) == 0:
        raise ValueError(f"{images_path}: images must be of shape [N, 28, 28], N > 0; they are {list(images.shape)}")
    if labels.dim() != 1 or len(labels) != len(images):
        raise ValueError(f"{labels_path}: {len(images)} images need as many labels; they are {list(labels.shape)}")
    bad = (labels >= CLASSES).nonzero()
    if len(bad):
        first = int(bad[0])
        raise ValueError(f"{labels_path}: label {first} is {int(labels[first])}, not a digit of 0 to {CLASSES - 1}")
    padding = [(SIZE - 28) // 2] * 4
    return torch.nn.functional.pad(images, padding).unsqueeze(1), labels.long()


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return path
    raise FileNotFoundError(f"{folder}: neither {name} nor {name}.gz is there")


def digits() -> Digits:
    """Loads the 1,797 handwritten digits of scikit-learn (UCI, 8x8 pixels of 17 greys), bilinearly upsampled to 32x32.

    A fixed fifth, the same share of each digit, is held out: 1,437 for training, 360 for the test.

    Returns:
        :class:`Digits`, on the CPU.

    Raises:
        ImportError: scikit-learn is not installed.

    Example:
        >>> digits = tp.data.digits()
        >>> digits.train_images.shape, digits.train_images.dtype
        (torch.Size([1437, 1, 32, 32]), torch.uint8)
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    ink = torch.from_numpy(images).float().view(-1, 1, 8, 8) * (255 / 16)
    ink = torch.nn.functional.interpolate(ink, (SIZE, SIZE), mode="bilinear").round().byte()
    train, test = train_test_split(np.arange(len(labels)), test_size=0.2, random_state=0, stratify=labels)
    labels = torch.from_numpy(labels).long()
    return Digits(ink[train], labels[train], ink[test], labels[test])

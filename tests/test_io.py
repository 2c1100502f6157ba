"""Matrix Market files: what is read, what is refused with which words, and the same as an independent reader."""

import gzip
import json
import os
import resource
import threading

import numpy as np
import pytest
import scipy.io
import torch
from data_files import data_folder

from torch_patterns import io, matrix_market
from torch_patterns.sparse import COO, coo

GENERAL = "%%MatrixMarket matrix coordinate real general\n"


def entries(A) -> list[tuple[int, int, float]]:
    return list(zip(A.row_idx.tolist(), A.col_idx.tolist(), A.values.tolist(), strict=True))


@pytest.fixture
def read(tmp_path):
    def read(content: str | bytes, **options):
        path = tmp_path / "a.mtx"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return io.read_matrix_market(path, **options)

    return read


@pytest.fixture
def refusal(read, tmp_path):
    """The error of a file, which must begin with the file's name."""

    def refusal(content: str | bytes, **options) -> str:
        with pytest.raises(ValueError) as caught:
            read(content, **options)
        file, message = str(caught.value).split(": ", 1)
        assert file == str(tmp_path / "a.mtx")
        return message

    return refusal


# ---- what is read


def test_entries_keep_the_order_of_the_file_and_explicit_zeros(read):
    A = read(GENERAL + "% words\n 3 4 4\n3 1 -.5\n\n1 4 1e3\n% more\n 2\t2  0\r\n1 1 +7.")
    assert entries(A) == [(2, 0, -0.5), (0, 3, 1000.0), (1, 1, 0.0), (0, 0, 7.0)]
    assert A.shape == (3, 4)
    assert (A.values.dtype, A.row_idx.dtype, A.col_idx.dtype) == (torch.float64, torch.int64, torch.int64)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_dtypes(read, dtype, index_dtype):
    A = read(GENERAL + "2 2 1\n2 1 0.1\n", dtype=dtype, index_dtype=index_dtype)
    assert A.row_idx.dtype == A.col_idx.dtype == index_dtype
    assert torch.equal(A.values, torch.tensor([0.1], dtype=torch.float64).to(dtype))


@pytest.mark.parametrize(
    "header, lines, want",
    [
        ("coordinate pattern general", "2 3 2\n2 3\n1 1\n", [(1, 2, 1), (0, 0, 1)]),
        ("coordinate integer general", "2 2 1\n1 2 -12\n", [(0, 1, -12)]),
        ("Coordinate REAL Symmetric", "2 2 2\n1 1 4\n2 1 3\n", [(0, 0, 4), (1, 0, 3), (0, 1, 3)]),
        ("coordinate pattern symmetric", "2 2 1\n2 1\n", [(1, 0, 1), (0, 1, 1)]),
        ("coordinate real skew-symmetric", "2 2 1\n2 1 3\n", [(1, 0, 3), (0, 1, -3)]),
        ("coordinate real symmetric", "2 2 1\n1 2 3\n", [(1, 0, 3), (0, 1, 3)]),
        ("coordinate real skew-symmetric", "2 2 1\n1 2 3\n", [(1, 0, -3), (0, 1, 3)]),
        ("array real general", "2 2\n1\n2\n0\n4\n", [(0, 0, 1), (1, 0, 2), (0, 1, 0), (1, 1, 4)]),
        ("array integer general", "3 1\n1\n2\n3\n", [(0, 0, 1), (1, 0, 2), (2, 0, 3)]),
        ("array real symmetric", "2 2\n1\n2\n3\n", [(0, 0, 1), (1, 0, 2), (1, 1, 3), (0, 1, 2)]),
        ("array real skew-symmetric", "3 3\n1\n2\n3\n", [(1, 0, 1), (2, 0, 2), (2, 1, 3)]),
        ("array real general", "0 5\n", []),
        ("coordinate real general", "0 0 0\n", []),
        ("coordinate real general", "9 999999999999999999 0", []),
    ],
)
def test_forms(read, header, lines, want):
    A = read(f"%%MatrixMarket matrix {header}\n{lines}")
    if header == "array real skew-symmetric":
        want = want + [(c, r, -v) for r, c, v in want]
    assert entries(A) == want


@pytest.mark.parametrize("fast", [True, False])
def test_exponents_as_fortran_writes_them(read, monkeypatch, fast):
    """Both parsers round such a number as they round one with an E."""
    skipped, instead = ("_slow", None) if fast else ("_fast", lambda *args: None)
    monkeypatch.setattr(matrix_market, skipped, instead)
    words = "1.5D+03 1d5 -.1D-05 +7.d0 4.9406564584124654D-324 0.1000000000000000055511151231257827D+00".split()
    A = read(GENERAL + f"{len(words)} 1 {len(words)}\n" + "".join(f"{i} 1 {w}\n" for i, w in enumerate(words, 1)))
    assert A.values.tolist() == [1500.0, 1e5, -1e-6, 7.0, 5e-324, 0.1]


def test_a_long_number_of_fortran(read):
    word = "1." + "0" * 100 + "D2"
    assert entries(read(GENERAL + f"2 2 2\n1 1 {word}\n2 2 {word.lower()}\r\n")) == [(0, 0, 100.0), (1, 1, 100.0)]


def test_an_integer_is_rounded_once(read):
    header = "%%MatrixMarket matrix array integer general\n3 1\n"
    A = read(header + f"{2**63 - 1}\n{2**64 - 1}\n{-(2**53) - 1}\n")
    assert A.values.tolist() == [2.0**63, 2.0**64, -(2.0**53)]


def test_duplicates(read, refusal):
    file = GENERAL + "2 3 5\n2 3 1\n1 1 5\n2 3 2\n1 1 6\n2 3 4\n"
    assert refusal(file) == "line 5: row 2, column 3 has an entry already, of line 3"
    assert entries(read(file, duplicates="sum")) == [(1, 2, 7.0), (0, 0, 11.0)]
    assert entries(read(file, duplicates="keep")) == [(1, 2, 1), (0, 0, 5), (1, 2, 2), (0, 0, 6), (1, 2, 4)]
    vast = file.replace("2 3 5", f"{10**17} {10**17} 5", 1)
    assert refusal(vast) == refusal(file)
    assert entries(read(vast, duplicates="sum")) == entries(read(file, duplicates="sum"))


def test_both_triangles_of_a_symmetric_file_are_one(read, refusal):
    file = "%%MatrixMarket matrix coordinate real skew-symmetric\n2 2 2\n2 1 3\n1 2 5\n"
    assert refusal(file) == "line 4: row 2, column 1 has an entry already, of line 3"
    assert entries(read(file, duplicates="sum")) == [(1, 0, -2.0), (0, 1, 2.0)]


def test_a_graphblas_type_is_honoured(read, refusal):
    header = "%%MatrixMarket matrix coordinate real general\n%%GraphBLAS type {}\n2 2 1\n2 1 {}\n"
    assert read(header.format("float", 0.1)).values.item() == np.float32(0.1)
    assert read(header.format("double", 0.1)).values.item() == 0.1
    assert read(header.format("int8_t", -128)).values.item() == -128
    assert read(header.format("uint64_t", 2**64 - 2**11)).values.item() == 2**64 - 2**11
    integer = header.replace("real", "integer")
    assert read(integer.format("uint64_t", 2**64 - 1)).values.item() == 2**64
    assert refusal(integer.format("int64_t", 2**63)) == f"line 4: {2**63} is no value of GraphBLAS type int64_t"
    assert refusal(integer.format("bool", 2)) == "line 4: 2 is no value of GraphBLAS type bool"
    assert refusal(header.format("int8_t", 128)) == "line 4: 128.0 is no value of GraphBLAS type int8_t"
    assert refusal(header.format("int8_t", 1.5)) == "line 4: 1.5 is no value of GraphBLAS type int8_t"
    assert refusal(header.format("uint64_t", 2**64)).endswith("is no value of GraphBLAS type uint64_t")
    assert refusal(header.format("float", 1e39)) == "line 4: 1e+39 does not fit in GraphBLAS type float"
    assert refusal(header.format("double complex", 1)).startswith("line 2: GraphBLAS type 'double complex' is none of")
    assert refusal(header.format("", 1)).startswith("line 2: GraphBLAS type '' is none of bool, int8_t")
    comment = header.replace("type {}", "comment").replace("{}", "1.5")
    assert read(comment).values.item() == 1.5
    twice = header.replace("2 2", "%%graphblas TYPE bool\n2 2", 1).format("bool", 1)
    assert refusal(twice) == "line 3: a second GraphBLAS type"
    late = header.format("int8_t", 1) + "%%GraphBLAS type bool\n"
    assert refusal(late) == "line 5: a GraphBLAS type belongs before the sizes"
    skew = header.replace("general", "skew-symmetric").format("uint8_t", 1)
    assert refusal(skew) == "line 2: skew-symmetric, but GraphBLAS type uint8_t has no negative numbers"


def test_gzip_is_told_by_content(read):
    file = GENERAL + "2 2 1\n2 1 5\n"
    assert entries(read(gzip.compress(file.encode()))) == [(1, 0, 5.0)]
    halves = gzip.compress(file[:60].encode()) + gzip.compress(file[60:].encode())
    assert entries(read(halves)) == [(1, 0, 5.0)]


# ---- what is refused

BAD = {
    "empty": ("", "line 1: the file ends within its header"),
    "other": ("hello\n", "line 1: not a Matrix Market file: it does not begin with %%MatrixMarket"),
    "binary": ("\x7fELF\0\0", "line 1: a NUL byte, which no text file has"),
    "mark": ("\ufeff" + GENERAL, "line 1: not a Matrix Market file: it does not begin with %%MatrixMarket"),
    "short": ("%%MatrixMarket matrix\n", "line 1: the header must be %%MatrixMarket matrix FORMAT FIELD SYMMETRY"),
    "object": (GENERAL.replace("matrix c", "vector c"), "line 1: the header must be"),
    "format": (GENERAL.replace("coordinate", "triplet"), "line 1: 'triplet' is none of coordinate, array"),
    "field": (GENERAL.replace("real", "double"), "line 1: 'double' is none of real, integer, pattern"),
    "symmetry": (GENERAL.replace("general", "odd"), "line 1: 'odd' is none of general, symmetric, skew-symmetric"),
    "complex": (GENERAL.replace("real", "complex"), "line 1: complex entries are not supported"),
    "hermitian": (GENERAL.replace("general", "hermitian"), "line 1: hermitian entries must be complex"),
    "no sizes": (GENERAL + "% 3 3 3\n", "line 3: the file ends within its header"),
    "two sizes": (GENERAL + "3 3\n", "line 2: coordinate files give here rows columns entries, in digits: '3 3'"),
    "sign": (GENERAL + "3 -3 1\n", "line 2: coordinate files give here rows columns entries, in digits: '3 -3 1'"),
    "huge": (GENERAL + "3 3 " + "9" * 30, "line 2: sizes beyond 18 digits"),
    "oblong": (GENERAL.replace("general", "symmetric") + "3 4 0\n", "line 2: symmetric, but 3 x 4 is not square"),
    "lying": (GENERAL + "3 3 999999999999\n1 1 5\n", "line 3: the file ends after 1 of the 999999999999 entries that"),
    "lying array": (GENERAL.replace("coordinate", "array") + "99999999 99999999\n5\n", "line 3: the file ends after 1"),
    "more": (GENERAL + "3 3 1\n1 1 5\n\n2 2 5\n3 3 5\n", "line 5: one entry more than the 1 that line 2 promises"),
    "row 0": (GENERAL + "3 3 1\n0 1 5\n", "line 3: 0 is outside the rows 1 to 3"),
    "row 4": (GENERAL + "3 4 2\n1 1 1\n4 1 5\n", "line 4: 4 is outside the rows 1 to 3"),
    "column 5": (GENERAL + "3 4 1\n1 5 5\n", "line 3: 5 is outside the columns 1 to 4"),
    "negative": (GENERAL + "3 4 1\n-1 5 5\n", "line 3: -1 is outside the rows 1 to 3"),
    "wraps": (GENERAL + f"3 4 1\n{2**64 + 1} 1 5\n", f"line 3: '{2**64 + 1}' does not fit in 64 bits"),
    "beyond": (GENERAL + f"3 4 1\n{2**63} 1 5\n", f"line 3: '{2**63}' is no index"),
    "decimal index": (GENERAL + "3 4 1\n1.0 1 5\n", "line 3: '1.0' is no integer"),
    "no value": (GENERAL + "3 4 1\n1 1\n", "line 3: 3 numbers make an entry, and not '1 1'"),
    "two values": (GENERAL + "3 4 1\n1 1 5 6\n", "line 3: 3 numbers make an entry, and not '1 1 5 6'"),
    "two lines": (GENERAL + "3 4 1\n1 1\n5\n", "line 3: 3 numbers make an entry, and not '1 1'"),
    "word": (GENERAL + "3 4 1\n1 1 forty-two\n", "line 3: 'forty-two' is no real number"),
    "comma": (GENERAL + "3 4 1\n1 1 1,5\n", "line 3: '1,5' is no real number"),
    "two dots": (GENERAL + "3 4 1\n1 1 1.5.5\n", "line 3: '1.5.5' is no real number"),
    "underscore": (GENERAL + "3 4 1\n1 1 1_0\n", "line 3: '1_0' is no real number"),
    "hexadecimal": (GENERAL + "3 4 1\n1 1 0x10\n", "line 3: '0x10' is no real number"),
    "Fortran": (GENERAL + "3 4 1\n1 1 1d\n", "line 3: '1d' is no real number"),
    "two exponents": (GENERAL + "3 4 1\n1 1 1d2e3\n", "line 3: '1d2e3' is no real number"),
    "D alone": (GENERAL + "3 4 1\n1 1 d5\n", "line 3: 'd5' is no real number"),
    "D of an integer": (GENERAL.replace("real", "integer") + "3 4 1\n1 1 1d5\n", "line 3: '1d5' is no integer"),
    "Fortran overflow": (GENERAL + "3 4 1\n1 1 1D+999\n", "line 3: '1D+999' does not fit in float64"),
    "overflow": (GENERAL + "3 4 1\n1 1 1e999\n", "line 3: '1e999' does not fit in float64"),
    "sign only": (GENERAL.replace("real", "integer") + "3 4 1\n1 1 -\n", "line 3: '-' is no integer"),
    "not whole": (GENERAL.replace("real", "integer") + "3 4 1\n1 1 2.0\n", "line 3: '2.0' is no integer"),
    "vast integer": (GENERAL.replace("real", "integer") + f"3 4 1\n1 1 {10**4000}\n", "line 3: '1000"),
    "valued pattern": (GENERAL.replace("real", "pattern") + "3 4 1\n1 1 5\n", "line 3: 2 numbers make an entry, and"),
    "array pattern": (
        "%%MatrixMarket matrix array pattern general\n1 1\n",
        "line 1: array pattern general is no valid",
    ),
    "skew diagonal": (
        GENERAL.replace("general", "skew-symmetric") + "3 3 2\n1 1 0\n2 2 5\n",
        "line 4: 5.0 is on the diagonal, which is 0 in a skew-symmetric matrix",
    ),
    "NUL": (GENERAL + "3 4 2\n1 1 5\n1 2\0 5\n", "line 4: a NUL byte, which no text file has"),
    "NUL in a comment": (GENERAL + "3 4 1\n1 1 5\n%\0\n", "line 4: a NUL byte, which no text file has"),
    "old Macintosh": (GENERAL + "3 4 2\n1 1 5\r1 2 5\r", "line 3: 3 numbers make an entry, and not '1 1 5\\r1 2 5\\r'"),
    "long header": ("%%MatrixMarket" + " " * 2**16 + "matrix", "line 1: longer than 65,536 bytes"),
    "long comment": (GENERAL + "%" * 2**17, "line 2: longer than 65,536 bytes"),
    "long entry": (GENERAL + "3 4 1\n1 1" + " " * 2**16 + "5\n", "line 3: longer than 65,536 bytes"),
    "long late comment": (GENERAL + "3 4 1\n1 1 5\n%" + "%" * 2**16 + "\n", "line 4: longer than 65,536 bytes"),
}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_by_line_and_cause(refusal, name, packed):
    content, message = BAD[name]
    content = content.encode()
    assert refusal(gzip.compress(content) if packed else content).startswith(message)


@pytest.mark.parametrize("block", [1, 5, 64])
@pytest.mark.parametrize("name", BAD)
def test_blocks_make_no_difference(refusal, monkeypatch, name, block):
    monkeypatch.setattr(matrix_market, "BLOCK", block)
    content, message = BAD[name]
    if len(content) < 1000:
        assert refusal(content).startswith(message)


@pytest.mark.parametrize("packed", [False, True])
def test_a_pipe_is_read_to_its_end(tmp_path, packed):
    """It has no size, by which other files say how much memory a block needs."""
    os.mkfifo(tmp_path / "pipe")
    content = (GENERAL + "9 9 3\n" + "1 1 5\n" + "\n" * 2**17 + "2 2 6\n9 9 7").encode()
    writer = threading.Thread(
        target=(tmp_path / "pipe").write_bytes, args=(gzip.compress(content) if packed else content,)
    )
    writer.start()
    assert entries(io.read_matrix_market(tmp_path / "pipe")) == [(0, 0, 5.0), (1, 1, 6.0), (8, 8, 7.0)]
    writer.join()


@pytest.mark.parametrize("before", [0, 2**18 - 2**15, 2**18 - 8])
def test_the_limit_of_a_line_is_the_same_within_and_across_blocks(read, refusal, before):
    head = GENERAL + "3 3 1\n" + "\n" * before
    for line in ("1 1 {}5\n", "{} 1 1 5\n", "%{}\n1 1 5\n"):
        blanks = 2**16 - len(line.split("\n")[0]) + 1
        assert entries(read(head + line.format(" " * blanks))) == [(0, 0, 5.0)]
        assert refusal(head + line.format(" " * (blanks + 1))) == f"line {before + 3}: longer than 65,536 bytes"


@pytest.mark.parametrize("cut", [1, 5, 12, 20, -9, -4, -1])
def test_a_truncated_gzip_file(refusal, cut):
    whole = gzip.compress((GENERAL + "2 2 1\n2 1 5\n").encode())
    message = refusal(whole[:cut])
    assert "gzip" in message or cut == 1


def test_a_damaged_gzip_file(refusal):
    whole = gzip.compress((GENERAL + "2 2 1\n2 1 5\n").encode())
    assert "gzip" in refusal(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])  # checksum
    assert "gzip" in refusal(whole[:12] + bytes(8) + whole[20:])
    assert "gzip" in refusal(whole + b"garbage")


def test_options_are_checked(read):
    file = GENERAL + f"{2**31} 1 1\n1 1 1\n"
    with pytest.raises(ValueError, match="needs index_dtype=torch.int64"):
        read(file, index_dtype=torch.int32)
    with pytest.raises(ValueError, match="duplicates='add' is none of error, sum, keep"):
        read(file, duplicates="add")
    with pytest.raises(TypeError, match="index_dtype is torch.int16"):
        read(file, index_dtype=torch.int16)
    with pytest.raises(TypeError, match="dtype is torch.int64, none of"):
        read(file, dtype=torch.int64)
    with pytest.raises(FileNotFoundError):
        io.read_matrix_market("nowhere.mtx")


def test_memory_does_not_follow_what_is_declared(refusal):
    """Half a gigabyte of blanks in a line, behind gzip, and 10^17 entries that are not there."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    bomb = gzip.compress(GENERAL.encode(), 1) + gzip.compress(b" " * 2**22, 1) * 128
    assert refusal(bomb) == "line 2: longer than 65,536 bytes"
    refusal(GENERAL + f"{10**17} {10**17} {10**17}\n1 1 1\n")
    refusal(GENERAL.replace("coordinate", "array") + f"{10**17} {10**17}\n1\n")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**16  # KiB


# ---- what is written


@pytest.mark.parametrize("name", ["a.mtx", "a.mtx.gz"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_what_is_written_is_read_back_bit_for_bit(tmp_path, name, dtype):
    values = torch.cat((torch.randn(50), torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-45]))).to(dtype)
    cell = torch.randperm(20 * 30)[: len(values)]
    A = coo((cell % 20).int(), (cell // 20).int(), values, (20, 30))
    io.write_matrix_market(tmp_path / name, A, comment="made by a tést\nof two lines")
    text = (tmp_path / name).read_bytes()
    text = (gzip.decompress(text) if name.endswith("gz") else text).decode().splitlines()
    head = ["%%MatrixMarket matrix coordinate real general", "% made by a tést", "% of two lines", "20 30 56"]
    assert text[:4] == head and len(text) == 4 + 56
    B = io.read_matrix_market(tmp_path / name, dtype=dtype, index_dtype=torch.int32)
    assert B.shape == A.shape
    assert torch.equal(B.row_idx, A.row_idx) and torch.equal(B.col_idx, A.col_idx)
    assert list(map(repr, B.values.tolist())) == list(map(repr, A.values.tolist()))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.bool])
def test_integers_are_written_as_integers(tmp_path, dtype):
    """To the last digit: 2^53 + 1 is no float."""
    numbers = {torch.int64: [2**53 + 1, -(2**63), 2**63 - 1], torch.int32: [-(2**31), 2**31 - 1, 7]}
    values = torch.tensor(numbers.get(dtype, [1, 0, 1]), dtype=dtype)
    A = COO(torch.tensor([1, 0, 1]), torch.tensor([2, 0, 0]), values, (2, 3))
    io.write_matrix_market(tmp_path / "a.mtx", A)
    head, _, *lines = (tmp_path / "a.mtx").read_text().splitlines()
    assert head == "%%MatrixMarket matrix coordinate integer general"
    assert [int(line.split()[2]) for line in lines] == [int(v) for v in values]
    if dtype != torch.uint8:
        theirs = scipy.io.mmread(tmp_path / "a.mtx")
        assert theirs.data.tolist() == [int(v) for v in values]


def test_complex_values_are_not_written(tmp_path):
    A = coo(torch.tensor([1, 0]), torch.tensor([2, 0]), torch.ones(2), (2, 3)) * 2j
    with pytest.raises(TypeError, match=r"write_matrix_market: values are torch\.complex64"):
        io.write_matrix_market(tmp_path / "a.mtx", A)
    assert not (tmp_path / "a.mtx").exists()


def test_an_empty_matrix_is_written(tmp_path):
    none = torch.zeros(0, dtype=torch.int64)
    io.write_matrix_market(tmp_path / "a.mtx", coo(none, none, torch.zeros(0), (0, 7)))
    assert (tmp_path / "a.mtx").read_text() == "%%MatrixMarket matrix coordinate real general\n0 7 0\n"


def test_scipy_reads_what_is_written(tmp_path):
    A = coo(torch.tensor([1, 0]), torch.tensor([2, 0]), torch.tensor([0.1, 1e300], dtype=torch.float64), (2, 3))
    io.write_matrix_market(tmp_path / "a.mtx", A)
    assert scipy.io.mmread(tmp_path / "a.mtx").toarray().tolist() == [[1e300, 0, 0], [0, 0, 0.1]]


# ---- real files


def test_every_real_matrix_is_read_as_scipy_reads_it():
    for path in sorted(data_folder("matrices").glob("*.mtx")):
        A, want = io.read_matrix_market(path), scipy.io.mmread(path)
        got = [np.asarray(part) for part in (A.row_idx, A.col_idx, A.values)]
        assert A.shape == want.shape, path
        order, wanted = np.lexsort(got[:2]), np.lexsort((want.row, want.col))
        for part, other in zip(got, (want.row, want.col, want.data), strict=True):
            assert np.array_equal(part[order], other[wanted]), path


def test_every_real_matrix_gives_the_golden_values():
    folder = data_folder("matrices").parent
    for name, want in json.loads((folder / "GOLDEN.json").read_text()).items():
        if not name.endswith(".mtx"):
            continue
        A = io.read_matrix_market(folder / name, duplicates="keep")
        row, col, values = A.row_idx.numpy(), A.col_idx.numpy(), A.values.numpy()
        mirrored = row < col if b"symmetric" in (folder / name).read_bytes()[:60] else False
        zeros = int(((values == 0) & ~np.broadcast_to(mirrored, len(values))).sum())
        assert (*A.shape, len(values), zeros) == tuple(
            want[key] for key in ("rows", "cols", "nnz", "explicit_zeros")
        ), name
        assert np.bincount(row, minlength=1).max() == want["max_row"]
        assert A.shape[0] - len(np.unique(row)) == want["empty_rows"]
        terms = values * (7 * col % 13 - 6)
        bound = len(terms) * np.finfo(np.float64).eps * want["sum_abs_a_x"]
        assert abs(terms.sum() - want["sum_y"]) <= bound, name


def test_quirks():
    with pytest.raises(ValueError, match="complex entries are not supported"):
        io.read_matrix_market(data_folder("quirks") / "young1c_complex.mtx")
    path = data_folder("quirks") / "gapbs_4.mtx"
    assert len(io.read_matrix_market(path, duplicates="keep").values) == 256
    assert io.read_matrix_market(path, duplicates="sum").values.sum() == 256


def test_what_cannot_be_read_is_not_written(tmp_path):
    zero = torch.zeros(1, dtype=torch.long)
    one = coo(zero, zero, torch.ones(1), (1, 1))
    for comment in ("fine\n" + "x" * 70_000, "a\0b"):
        with pytest.raises(ValueError, match="line of comment"):
            io.write_matrix_market(tmp_path / "a.mtx", one, comment=comment)
    for value in (2**63 - 1, 2**63):
        large = COO(zero, zero, torch.tensor([value], dtype=torch.uint64), (1, 1))
        if value == 2**63:
            with pytest.raises(TypeError, match="2\\^63 and more"):
                io.write_matrix_market(tmp_path / "a.mtx", large)
        else:
            io.write_matrix_market(tmp_path / "a.mtx", large)
            assert (tmp_path / "a.mtx").read_text().endswith(f"1 1 {value}\n")

"""Graphs from edges, matrices, other libraries and files: packed edges are sorted, and rows found by bisection."""

from __future__ import annotations

import gzip
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_patterns.arguments import integer, type_name, typed, word
from torch_patterns.graph.container import INDEX_DTYPES, Graph, check_index_dtype, pointer_dtype

_ops = torch.ops.torch_patterns
Ids = Tensor | np.ndarray | Sequence[int]
MAX_VERTICES = 2**31  # two ids in the 62 bits of a packed edge


def from_edges(
    src: Ids,
    dst: Ids,
    num_vertices: int | None = None,
    *,
    directed: bool | None = True,
    dedup: bool = False,
    index_dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    validate: bool = True,
) -> Graph:
    """Builds the graph with an edge from ``src[i]`` to ``dst[i]`` for every i (the COO form of Fig. 15.3).

    Every row of the graph is sorted, whatever the order of the edges, so equal sets of edges give equal graphs. Self
    loops and multiple edges are kept.

    Args:
        src, dst: [edges] vertex ids of an integer dtype: tensors, numpy arrays or sequences.
        num_vertices: V; one more than the greatest id if not given.
        directed: True if the edges have one direction: in-edges are stored as well. False adds the reverse of every
            edge (but not of self loops). None stores the edges as they are, and checks whether they are symmetric.
        dedup: keep only one of several edges from the same vertex to the same vertex.
        index_dtype: ``torch.int32`` or ``torch.int64``; that of ``src`` and ``dst`` if not given, int64 for other ids.
        device: where to build the graph. If not given, tensors stay on theirs and numpy arrays on the CPU; sequences
            go to torch's default device.
        validate: check that all ids are in range, which costs a synchronization on CUDA. Without it, ids out of range
            give a graph that the operators may refuse.

    Returns:
        A :class:`Graph`, with in-edges unless it is symmetric.

    Raises:
        IndexError: an id is negative, or not below ``num_vertices``; the message names the first.
        ValueError: ``src`` and ``dst`` are not one-dimensional and of one length; ``num_vertices`` is negative or
            beyond 2^31; ``index_dtype`` cannot count the vertices.
        TypeError: ids are not integers, or ``index_dtype`` is neither int32 nor int64.
        RuntimeError: devices differ.

    Example:
        >>> tp.graph.from_edges([0, 1], [1, 2], directed=False)
        Graph(num_vertices=3, num_edges=4, symmetric=True, dtype=torch.int64, device='cpu')
    """
    return _build(
        "from_edges",
        ("src", "dst"),
        src,
        dst,
        num_vertices,
        directed,
        dedup=dedup,
        index_dtype=index_dtype,
        device=device,
        validate=validate,
    )


@typed
def from_edge_index(
    edge_index: Tensor, num_vertices: int | None = None, *, directed: bool | None = True, **options
) -> Graph:
    """Builds the graph with an edge from ``edge_index[0, i]`` to ``edge_index[1, i]`` for every i, as in PyG.

    Edges are sorted by source and then by destination; ``tp.lexsort([edge_index[1], edge_index[0]])`` is the
    permutation that does the same to weights and other edge data. ``g.edge_index()`` is the inverse.

    Args:
        edge_index: [2, E], of an integer dtype.
        num_vertices: V; one more than the greatest id if not given.
        directed: True for edges of one direction; False adds the reverse of every edge; None to find out whether every
            edge has its reverse, as in the ``edge_index`` of an undirected graph.
        options: ``dedup``, ``index_dtype``, ``device`` and ``validate`` of :func:`from_edges`.

    Raises:
        IndexError, ValueError, TypeError, RuntimeError: as :func:`from_edges`, or ``edge_index`` is not [2, E].

    Example:
        >>> tp.graph.from_edge_index(torch.tensor([[2, 0, 0], [0, 2, 1]])).edge_index()
        tensor([[0, 0, 2],
                [1, 2, 0]])
    """
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise ValueError(f"from_edge_index: edge_index must be [2, E], got {[*edge_index.shape]}")
    names = ("edge_index[0]", "edge_index[1]")
    return _build("from_edge_index", names, *edge_index.unbind(0), num_vertices, directed, **options)


def _build(
    where: str,
    names: tuple[str, str],
    src: Ids,
    dst: Ids,
    num_vertices: int | None,
    directed: bool | None,
    *,
    dedup: bool = False,
    index_dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    validate: bool = True,
) -> Graph:
    """Does :func:`from_edges`; messages name the function that was called, and its arguments."""
    directed = directed if directed is None else bool(directed)  # numpy's False and 0 count as False
    src, dst = (_ids(where, name, ids, device) for name, ids in zip(names, (src, dst), strict=True))
    if src.dim() != 1 or src.shape != dst.shape:
        raise ValueError(
            f"{where}: {names[0]} and {names[1]} must be one-dimensional and of one length, got {[*src.shape]} and "
            f"{[*dst.shape]}"
        )
    if src.device != dst.device:
        raise RuntimeError(f"{where}: {names[0]} is on {src.device}, {names[1]} on {dst.device}")
    if index_dtype is None:
        index_dtype = torch.promote_types(src.dtype, dst.dtype)
    if num_vertices is None:
        num_vertices = max(int(torch.maximum(src.amax(), dst.amax())) + 1, 0) if len(src) else 0
    num_vertices = integer(where, "num_vertices", num_vertices)
    if not 0 <= num_vertices <= MAX_VERTICES:
        raise ValueError(f"{where}: num_vertices must be in 0 ... 2^31, got {num_vertices}")
    if validate:
        _check_ids(where, names, src, dst, num_vertices)
    check_index_dtype(where, index_dtype, num_vertices)
    return _from_packed(_packed(src, dst, num_vertices, directed is False), num_vertices, directed, dedup, index_dtype)


def _ids(where: str, name: str, values: Ids, device: torch.device | str | None) -> Tensor:
    """Returns ids on `device`. Without it, tensors and numpy arrays stay, and sequences go to torch's default
    device."""
    if isinstance(values, Tensor):
        ids = values if device is None else values.to(device)
    elif isinstance(values, np.ndarray):
        # torch takes no arrays of another byte order or with negative strides, and warns of those that are read-only.
        ids = torch.as_tensor(np.require(values, values.dtype.newbyteorder("="), "CW"), device=device or "cpu")
    elif isinstance(values, Sequence) and not isinstance(values, (str, bytes)):
        try:
            ids = torch.tensor(values, device=device)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise TypeError(f"{where}: {name} must hold integers: {error}") from None
        ids = ids if ids.numel() else ids.long()
    else:
        raise TypeError(f"{where}: {name} must be a tensor, a numpy array or a sequence, got {type_name(values)}")
    if ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex():
        raise TypeError(f"{where}: {name} must hold integers, got {ids.dtype}")
    return ids if ids.dtype in INDEX_DTYPES else ids.long()


def _check_ids(where: str, names: tuple[str, str], src: Tensor, dst: Tensor, num_vertices: int) -> None:
    bad = torch.stack([((ids < 0) | (ids >= num_vertices)).any() for ids in (src, dst)]).tolist()
    for name, ids, any_bad in zip(names, (src, dst), bad, strict=True):
        if any_bad:
            first = int(((ids < 0) | (ids >= num_vertices)).nonzero()[0])
            raise IndexError(f"{where}: {name}[{first}] is {int(ids[first])}, not in 0 ... {num_vertices - 1}")


def _bits(num_vertices: int) -> int:
    return max(num_vertices - 1, 1).bit_length()


def _packed(src: Tensor, dst: Tensor, num_vertices: int, both: bool) -> Tensor:
    """Packs each edge into an integer, src above dst, which sorts by row, then column. `both`: adds the reverse
    edges."""
    bits, src, dst = _bits(num_vertices), src.long(), dst.long()
    edges = src << bits | dst
    if not both:
        return edges
    back = _ops.compact(dst << bits | src, src != dst)
    return torch.cat([edges, back])


def _from_packed(
    edges: Tensor, num_vertices: int, directed: bool | None, dedup: bool, index_dtype: torch.dtype
) -> Graph:
    bits = _bits(num_vertices)
    mask = (1 << bits) - 1
    edges = _ops.sort_keys(edges, 0, False, 0, 2 * bits)
    if dedup and len(edges):
        first = torch.ones_like(edges, dtype=torch.bool)
        first[1:] = edges[1:] != edges[:-1]
        edges = _ops.compact(edges, first)
    firsts = torch.arange(num_vertices + 1, device=edges.device) << bits

    def rows(edges: Tensor) -> tuple[Tensor, Tensor]:
        pointers = torch.searchsorted(edges, firsts).to(pointer_dtype(index_dtype, len(edges)))
        return pointers, (edges & mask).to(index_dtype)

    out = rows(edges)
    if directed is False:
        return Graph(*out, None, None, True)
    # A stable sort by destination keeps the sources in order, and sorts by half the bits of a full sort.
    reverse = rows(_ops.sort_keys((edges & mask) << bits | edges >> bits, 0, False, bits, 2 * bits))
    if directed is None and all(map(torch.equal, out, reverse)):
        return Graph(*out, None, None, True)
    return Graph(*out, *reverse, False)


@typed
def from_csr(row_ptrs: Tensor, col_idx: Tensor, *, directed: bool | None = None, **options) -> Graph:
    """Builds the graph with this adjacency matrix (CSR): sorts its rows, and builds the in-edges.

    Args:
        row_ptrs: [V + 1], int32 or int64: 0 first, E last, not decreasing.
        col_idx: [E], the destinations of the edges.
        directed: None checks whether every edge has its reverse; False adds the reverse of every edge.
        options: ``dedup``, ``index_dtype``, ``device`` and ``validate`` of :func:`from_edges`.

    Raises:
        IndexError: a pointer or vertex is out of range; the message names the first.
        ValueError, TypeError, RuntimeError: ``row_ptrs`` decrease, do not begin with 0 or do not end with E; or as
            :func:`from_edges`.

    Example:
        >>> tp.graph.from_csr(torch.tensor([0, 2, 2, 3]), torch.tensor([2, 1, 0]))
        Graph(num_vertices=3, num_edges=3, symmetric=False, dtype=torch.int64, device='cpu')
    """
    return _from_rows("from_csr", row_ptrs, col_idx, directed, **options)


def _from_rows(where: str, row_ptrs: Tensor, col_idx: Tensor, directed: bool | None, **options) -> Graph:
    if col_idx.dtype not in INDEX_DTYPES or col_idx.dim() != 1:
        raise (ValueError if col_idx.dtype in INDEX_DTYPES else TypeError)(
            f"{where}: col_idx must be one-dimensional int32 or int64, got {col_idx.dtype} of shape {[*col_idx.shape]}"
        )
    if row_ptrs.device != col_idx.device:
        raise RuntimeError(f"{where}: row_ptrs is on {row_ptrs.device}, col_idx on {col_idx.device}")
    validate, n = options.get("validate", True), max(row_ptrs.numel() - 1, 0)
    vertices = torch.arange(n, dtype=col_idx.dtype, device=row_ptrs.device)
    try:
        src = _ops.segment_expand(vertices, row_ptrs, col_idx.numel(), validate)
    except (IndexError, ValueError, TypeError, RuntimeError) as error:
        message = str(error).split("\n")[0].replace("offsets", "row_ptrs").replace("segment_expand", where)
        raise type(error)(message) from None
    return _build(where, ("row_ptrs", "col_idx"), src, col_idx, n, directed, **options)


@typed
def from_torch(matrix: Tensor, *, directed: bool | None = None, **options) -> Graph:
    """Builds the graph of a square matrix: an edge from i to j for every stored entry [i, j] (if dense: nonzero entry).

    Stored entries are edges even if their value is 0.

    Args:
        matrix: [V, V], dense or ``torch.sparse`` (COO, also with duplicates, CSR, CSC, BSR or BSC), of any dtype.
        directed: None checks whether every edge has its reverse; False adds the reverse of every edge.
        options: ``dedup``, ``index_dtype``, ``device`` and ``validate`` of :func:`from_edges`.

    Raises:
        ValueError: the matrix is not square, or batched; or as :func:`from_edges`.

    Example:
        >>> tp.graph.from_torch(torch.tensor([[0, 1], [0, 0]]))
        Graph(num_vertices=2, num_edges=1, symmetric=False, dtype=torch.int64, device='cpu')
    """
    if matrix.dim() != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"from_torch: the matrix must be square, got {[*matrix.shape]}")
    n = matrix.shape[0]
    if matrix.layout == torch.sparse_csr:
        return _from_rows("from_torch", matrix.crow_indices(), matrix.col_indices(), directed, **options)
    if matrix.layout == torch.strided:
        src, dst = matrix.nonzero().unbind(1)
    else:
        coo = matrix if matrix.layout == torch.sparse_coo else matrix.to_sparse()
        src, dst = coo._indices()  # indices() refuses a matrix whose duplicates have not been added up
    return _build("from_torch", ("row indices", "column indices"), src, dst, n, directed, **options)


def from_scipy(matrix: Any, *, directed: bool | None = None, **options) -> Graph:
    """Builds the graph of a scipy sparse matrix: an edge from i to j for every stored entry [i, j], even if it is 0.

    Args:
        matrix: [V, V], of any format and dtype.
        directed: None checks whether every edge has its reverse; False adds the reverse of every edge.
        options: ``dedup``, ``index_dtype``, ``device`` and ``validate`` of :func:`from_edges`.

    Raises:
        ValueError: the matrix is not square; or as :func:`from_edges`.

    Example:
        >>> import scipy.sparse
        >>> tp.graph.from_scipy(scipy.sparse.coo_array(([1.0], ([0], [1])), shape=(2, 2)))
        Graph(num_vertices=2, num_edges=1, symmetric=False, dtype=torch.int64, device='cpu')
    """
    if not hasattr(matrix, "tocoo"):
        raise TypeError(f"from_scipy: matrix must be a scipy sparse matrix or array, got {type_name(matrix)}")
    if len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"from_scipy: the matrix must be square, got {[*matrix.shape]}")
    coo, n = matrix.tocoo(), int(matrix.shape[0])
    options.setdefault("index_dtype", torch.int64)
    src, dst = np.ascontiguousarray(coo.row), np.ascontiguousarray(coo.col)
    return _build("from_scipy", ("row indices", "column indices"), src, dst, n, directed, **options)


def from_networkx(graph: Any, *, directed: bool | None = None, **options) -> Graph:
    """Builds the graph of a networkx graph. Vertex i is the i-th of ``graph.nodes``; attributes are dropped.

    Args:
        graph: a ``Graph``, ``DiGraph``, ``MultiGraph`` or ``MultiDiGraph``.
        directed: None takes over whether the networkx graph is directed; False adds the reverse of every edge.
        options: ``dedup``, ``index_dtype``, ``device`` and ``validate`` of :func:`from_edges`.

    Example:
        >>> import networkx
        >>> tp.graph.from_networkx(networkx.path_graph(4))
        Graph(num_vertices=4, num_edges=6, symmetric=True, dtype=torch.int64, device='cpu')
    """
    if not (hasattr(graph, "nodes") and hasattr(graph, "is_directed")):
        raise TypeError(f"from_networkx: graph must be a networkx graph, got {type_name(graph)}")
    ids = {node: i for i, node in enumerate(graph.nodes)}
    src, dst = [ids[u] for u, _ in graph.edges()], [ids[v] for _, v in graph.edges()]
    directed = graph.is_directed() if directed is None else directed
    return _build("from_networkx", ("src", "dst"), src, dst, len(ids), directed, **options)


def read(
    path: str | Path, num_vertices: int | None = None, *, directed: bool | None = None, base: int = 0, **options
) -> Graph:
    """Reads a graph from a file: a Matrix Market file (``.mtx``, ``.mtx.gz``), or, by any other name, a list of edges.

    A list has one edge per line: two vertex ids, separated by spaces, tabs or commas; anything after them, such as a
    weight, is ignored. ``#`` and ``%`` start comments. ``.gz`` files are unpacked.

    Args:
        path: the file.
        num_vertices: the number of vertices of a list of edges; one more than its greatest id if not given.
        directed: None checks whether every edge has its reverse (a Matrix Market file that says ``symmetric`` gives
            both); False adds the reverse of every edge.
        base: the id of the first vertex in a list of edges.
        options: ``dedup``, ``index_dtype``, ``device`` and ``validate`` of :func:`from_edges`.

    Raises:
        ValueError: the file is malformed (the message names the file and the line), or its matrix is not square.
        IndexError: an id is out of range.
        OSError: there is no such file.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "edges.txt")
        >>> path.write_text("# a comment\\n0 1\\n1 2\\n") and tp.graph.read(path)
        Graph(num_vertices=3, num_edges=2, symmetric=False, dtype=torch.int64, device='cpu')
    """
    path = Path(path)
    if path.name.removesuffix(".gz").endswith(".mtx"):
        from torch_patterns.io import read_matrix_market

        matrix = read_matrix_market(path, duplicates="keep")
        rows, columns = matrix.shape
        if rows != columns or num_vertices not in (None, rows):
            raise ValueError(f"read: {path}: the matrix is {rows} x {columns}, which is no graph of that many vertices")
        return _build("read", ("row_idx", "col_idx"), matrix.row_idx, matrix.col_idx, rows, directed, **options)
    edges = torch.from_numpy(_read_edges(path)) - word("read", "base", base)
    options.setdefault("index_dtype", torch.int64)
    return _build("read", ("src", "dst"), edges[:, 0], edges[:, 1], num_vertices, directed, **options)


def _read_edges(path: Path) -> np.ndarray:
    """Reads a text file of edges: int64 [edges, 2]."""
    opened = gzip.open if path.suffix == ".gz" else open
    number, line = 0, ""

    def separated(file: Iterable[str]) -> Iterator[str]:
        nonlocal number, line
        for number, line in enumerate(file, 1):  # noqa: B007
            yield line.replace(",", " ")

    try:
        # Latin-1 has a character for every byte, so what stands beside the ids may have any encoding.
        with opened(path, "rt", encoding="latin-1") as file, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "loadtxt: input contained no data")
            ids = np.loadtxt(separated(file), np.int64, comments=("#", "%"), usecols=(0, 1), ndmin=2)
            return ids.reshape(-1, 2)
    except ValueError:  # of the line that was read last
        found = repr(line.rstrip("\r\n")[:60])
        raise ValueError(f"read: {path}: line {number}: two vertex ids make an edge, and not {found}") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"read: {path}: {error}") from error

"""cuSPARSE's product of a matrix and a vector, called directly: the matrix is analyzed once, as its users may do."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import torch
from torch import Tensor

# Constants of cusparse.h and library_types.h.
INT32, INT64, FLOAT32, NO_TRANSPOSE, ZERO_BASED, ALGORITHMS = 2, 3, 0, 0, 0, (2, 3)


def check(status: int) -> None:
    if status:
        raise RuntimeError(f"cuSPARSE: status {status}")


@functools.lru_cache(maxsize=1)
def prepared(values: Tensor, ptrs: Tensor, cols: Tensor, x: Tensor) -> Callable[[], Tensor]:
    """The product by the faster of the two algorithms for CSR."""
    library, rows = ctypes.CDLL("libcusparse.so.12"), ptrs.numel() - 1  # torch has loaded it
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    handle, matrix, vector, result = pointer(), pointer(), pointer(), pointer()
    y, one, zero = x.new_empty(rows), ctypes.c_float(1), ctypes.c_float(0)
    index = INT32 if cols.dtype == torch.int32 else INT64
    check(library.cusparseCreate(ctypes.byref(handle)))
    check(library.cusparseSetStream(handle, pointer(torch.cuda.current_stream().cuda_stream)))
    addresses = [pointer(t.data_ptr()) for t in (ptrs, cols, values)]
    size = [number(rows), number(x.numel()), number(values.numel())]
    check(library.cusparseCreateCsr(ctypes.byref(matrix), *size, *addresses, index, index, ZERO_BASED, FLOAT32))
    for descriptor, t in ((vector, x), (result, y)):
        check(library.cusparseCreateDnVec(ctypes.byref(descriptor), number(t.numel()), pointer(t.data_ptr()), FLOAT32))
    product = (handle, NO_TRANSPOSE, ctypes.byref(one), matrix, vector, ctypes.byref(zero), result, FLOAT32)

    def by(algorithm: int) -> Callable[[], Tensor]:
        size = ctypes.c_size_t()
        check(library.cusparseSpMV_bufferSize(*product, algorithm, ctypes.byref(size)))
        buffer = torch.empty(max(size.value, 1), dtype=torch.uint8, device=x.device)
        check(library.cusparseSpMV_preprocess(*product, algorithm, pointer(buffer.data_ptr())))

        def call() -> Tensor:
            check(library.cusparseSpMV(*product, algorithm, pointer(buffer.data_ptr())))
            return y

        return call

    def milliseconds(call: Callable[[], Tensor]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        call()
        begin.record()
        for _ in range(5):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    return min(map(by, ALGORITHMS), key=milliseconds)


def spmv(values: Tensor, ptrs: Tensor, cols: Tensor, x: Tensor) -> Tensor:
    return prepared(values, ptrs, cols, x)()

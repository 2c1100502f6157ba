// Gathers rows of bytes: row i of the result is a row of the input, or every word of it is a fill. Threads move words
// of up to 16 bytes, each several in flight, whatever the length of rows.
#pragma once
#include "block/launch.cuh"
#include "block/words.h"
#include "core/division.h"

namespace tp::block {

constexpr int gather_threads = 256, gather_batch = 4;

// from(i) is the row of `in` that becomes row i of the result; if it is negative, the row becomes `fill`.
template <class Word, class From>
__global__ void __launch_bounds__(gather_threads)
    gather_rows_kernel(const Word* in, Word* out, Word fill, int64_t rows, int64_t width, const From from) {
  const int64_t first = int64_t(blockIdx.x) * gather_threads * gather_batch + threadIdx.x;
  int64_t source[gather_batch];
#pragma unroll
  for (int b = 0; b < gather_batch; ++b) {
    const int64_t i = first + b * gather_threads, row = quotient(i, width);
    const int64_t at = row < rows ? from(row) : -1;
    source[b] = at < 0 ? -1 : at * width + i - row * width;
  }
  Word words[gather_batch];
#pragma unroll
  for (int b = 0; b < gather_batch; ++b) words[b] = source[b] < 0 ? fill : in[source[b]];
#pragma unroll
  for (int b = 0; b < gather_batch; ++b) {
    const int64_t i = first + b * gather_threads;
    if (i < rows * width) out[i] = words[b];
  }
}

// `fill` is an element, repeated to 8 bytes.
template <class From>
void gather_rows(const char* op, const void* in, void* out, uint64_t fill, int64_t rows, int64_t row_bytes,
                 const From& from, Context& context) {
  with_words(in, out, row_bytes, [&](auto type) {
    using Word = typename decltype(type)::type;
    const int64_t width = row_bytes / int64_t(sizeof(Word)),
                  blocks = ceil_div(rows * width, int64_t(gather_threads * gather_batch));
    if (blocks == 0) return;
    require(blocks <= 2147483647, op, ": ", rows, " rows are too many for one launch");
    const uint64_t fills[] = {fill, fill};
    Word word;
    memcpy(&word, fills, sizeof(Word));
    gather_rows_kernel<<<unsigned(blocks), gather_threads, 0, cudaStream_t(context.stream)>>>(
        static_cast<const Word*>(in), static_cast<Word*>(out), word, rows, width, from);
    check_launch(op);
  });
}

}  // namespace tp::block

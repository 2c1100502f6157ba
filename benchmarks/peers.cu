// CUB's device-wide algorithms, which are timed for comparison with ours; figures.py builds them into a separate
// library. All functions have the same signature; a call without `temp` returns how much temporary memory is needed.
#include <cuda_bf16.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <thrust/iterator/transform_output_iterator.h>

#include <cstdint>
#include <cub/cub.cuh>

#define PEER(name)                                                                                              \
  extern "C" int name(void* temp, size_t* bytes, const void* a, const void* b, void* out, int64_t n, int64_t m, \
                      cudaStream_t stream)

namespace {
template <class T>
const T* in(const void* p) {
  return static_cast<const T*>(p);
}
template <class T>
T* to(void* p) {
  return static_cast<T*>(p);
}

struct Map {
  float a, b;
};
struct Compose {
  __device__ Map operator()(const Map& earlier, const Map& later) const {
    return {later.a * earlier.a, later.a * earlier.b + later.b};
  }
};
struct ToMap {
  const float *a, *b;
  __device__ Map operator()(int64_t i) const { return {a[i], b[i]}; }
};
struct Value {
  __device__ float operator()(const Map& map) const { return map.b; }
};
struct Larger {
  template <class T>
  __device__ T operator()(T x, T y) const {
    return x < y ? y : x;
  }
};
struct Less {
  __device__ bool operator()(int32_t x, int32_t y) const { return x < y; }
};
}  // namespace

PEER(scan_sum_float32) { return cub::DeviceScan::InclusiveSum(temp, *bytes, in<float>(a), to<float>(out), n, stream); }
PEER(scan_max_float32) {
  return cub::DeviceScan::InclusiveScan(temp, *bytes, in<float>(a), to<float>(out), Larger{}, n, stream);
}
PEER(scan_sum_bfloat16) {
  return cub::DeviceScan::InclusiveSum(temp, *bytes, in<__nv_bfloat16>(a), to<__nv_bfloat16>(out), n, stream);
}
PEER(reduce_sum_float32) { return cub::DeviceReduce::Sum(temp, *bytes, in<float>(a), to<float>(out), n, stream); }
PEER(segment_sum_float32) {
  const int64_t* offsets = in<int64_t>(b);
  return cub::DeviceSegmentedReduce::Sum(temp, *bytes, in<float>(a), to<float>(out), m, offsets, offsets + 1, stream);
}
// b: the segment of each element.
PEER(segment_scan_sum_float32) {
  return cub::DeviceScan::InclusiveSumByKey(temp, *bytes, in<int>(b), in<float>(a), to<float>(out), n,
                                            ::cuda::std::equal_to<>{}, stream);
}
PEER(linear_recurrence_float32) {
  const auto maps =
      thrust::make_transform_iterator(thrust::make_counting_iterator(int64_t(0)), ToMap{in<float>(a), in<float>(b)});
  const auto values = thrust::make_transform_output_iterator(to<float>(out), Value{});
  return cub::DeviceScan::InclusiveScan(temp, *bytes, maps, values, Compose{}, n, stream);
}
PEER(sort_keys_int32) {
  return cub::DeviceRadixSort::SortKeys(temp, *bytes, in<int32_t>(a), to<int32_t>(out), n, 0, 32, stream);
}
PEER(sort_keys_int64) {
  return cub::DeviceRadixSort::SortKeys(temp, *bytes, in<int64_t>(a), to<int64_t>(out), n, 0, 64, stream);
}
// out: the keys, then the values.
PEER(sort_pairs_int32) {
  int32_t* keys = to<int32_t>(out);
  return cub::DeviceRadixSort::SortPairs(temp, *bytes, in<int32_t>(a), keys, in<int32_t>(b), keys + n, n, 0, 32,
                                         stream);
}
// b: positions, which CUB reads from memory. out: where each key was, then the keys.
PEER(sort_float32) {
  int64_t* order = to<int64_t>(out);
  float* keys = reinterpret_cast<float*>(order + n);
  return cub::DeviceRadixSort::SortPairs(temp, *bytes, in<float>(a), keys, in<int64_t>(b), order, n, 0, 32, stream);
}
// a: the n offsets; b: the m keys.
PEER(segment_sort_int32) {
  const int64_t* offsets = in<int64_t>(a);
  return cub::DeviceSegmentedSort::SortKeys(temp, *bytes, in<int32_t>(b), to<int32_t>(out), m, n - 1, offsets,
                                            offsets + 1, stream);
}
PEER(merge_int32) {
  return cub::DeviceMerge::MergeKeys(temp, *bytes, in<int32_t>(a), n, in<int32_t>(b), m - n, to<int32_t>(out), Less{},
                                     stream);
}
// out: how many runs there are, their keys, and their lengths.
PEER(run_length_encode_int64) {
  int64_t *count = to<int64_t>(out), *keys = count + 1;
  return cub::DeviceRunLengthEncode::Encode(temp, *bytes, in<int64_t>(a), keys, keys + n, count, n, stream);
}
// out: how many runs there are, their keys, and the sums of their values.
PEER(reduce_by_key_int64) {
  int64_t *count = to<int64_t>(out), *keys = count + 1;
  float* sums = reinterpret_cast<float*>(keys + n);
  return cub::DeviceReduce::ReduceByKey(temp, *bytes, in<int64_t>(a), keys, in<float>(b), sums, count,
                                        ::cuda::std::plus<>{}, n, stream);
}
// out: how many elements are selected, the selected ones, and the others from the end backwards.
PEER(partition_float32) {
  int64_t* count = to<int64_t>(out);
  return cub::DevicePartition::Flagged(temp, *bytes, in<float>(a), in<bool>(b), reinterpret_cast<float*>(count + 1),
                                       count, n, stream);
}
// out: how many elements are selected, and these.
PEER(select_float32) {
  int64_t* count = to<int64_t>(out);
  return cub::DeviceSelect::Flagged(temp, *bytes, in<float>(a), in<bool>(b), reinterpret_cast<float*>(count + 1), count,
                                    n, stream);
}
// Every integer has a bin of its own.
PEER(histogram_256_bins) {
  return cub::DeviceHistogram::HistogramEven(temp, *bytes, in<int32_t>(a), to<int32_t>(out), 257, 0, 256, int(n),
                                             stream);
}
PEER(histogram_65536_bins) {
  return cub::DeviceHistogram::HistogramEven(temp, *bytes, in<int32_t>(a), to<int32_t>(out), 65537, 0, 65536, int(n),
                                             stream);
}

/// \file
/// Stands in for NVIDIA's header: groups of a block, of its tiles, of coalesced lanes, of the grid.
#pragma once

#include "cuda_runtime.h"
#include "libcuxx.h"

namespace cooperative_groups {

namespace details {

using sim::any::thread_of_block;
inline unsigned threads_of_block() { return blockDim.x * blockDim.y * blockDim.z; }
inline unsigned long long blocks_of_grid() { return 1ull * gridDim.x * gridDim.y * gridDim.z; }
inline unsigned long long block_of_grid() {
  return (1ull * blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
}

}  // namespace details

/// Some lanes of a warp, or all threads of a block.
class thread_group {
 public:
  unsigned long long size() const { return size_; }
  unsigned long long num_threads() const { return size_; }
  unsigned thread_rank() const { return rank_; }
  void sync(SIM_HERE) const {
    if (block_) return sim::sync_block(where, "block.sync()");
    sim::sync_warp(lanes_, where);
  }

 protected:
  template <unsigned size, class Parent>
  friend class thread_block_tile;
  friend thread_group tiled_partition(const thread_group&, unsigned);
  thread_group(unsigned size, unsigned rank, uint32_t lanes, bool block)
      : size_(size), rank_(rank), lanes_(lanes), block_(block) {}
  unsigned size_, rank_;
  uint32_t lanes_;  ///< of the warp; of a block: not used
  bool block_;
};

class thread_block : public thread_group {
 public:
  thread_block() : thread_group(details::threads_of_block(), details::thread_of_block(), 0, true) {}
  static void sync(SIM_HERE) { sim::sync_block(where, "block.sync()"); }
  static unsigned size() { return details::threads_of_block(); }
  static unsigned num_threads() { return details::threads_of_block(); }
  static unsigned thread_rank() { return details::thread_of_block(); }
  static dim3 group_index() { return blockIdx; }
  static dim3 thread_index() { return threadIdx; }
  static dim3 group_dim() { return blockDim; }
  static dim3 dim_threads() { return blockDim; }
};
inline thread_block this_thread_block() { return {}; }

/// Shared by the groups inside a warp. Ranks are relative to the group.
template <class Group>
class warp_group : public thread_group {
 public:
  template <class T>
  T shfl(T v, unsigned rank, SIM_HERE) const {
    return sim::shuffle_any(sim::Shuffle::idx, lanes_, v, group().lane_of(rank), 32, where);
  }
  template <class T>
  T shfl_down(T v, unsigned distance, SIM_HERE) const {
    const unsigned from = rank_ + distance;
    return shfl(v, from < size_ ? from : rank_, where);
  }
  template <class T>
  T shfl_up(T v, unsigned distance, SIM_HERE) const {
    return shfl(v, distance <= rank_ ? rank_ - distance : rank_, where);
  }
  int any(int p, SIM_HERE) const { return sim::ballot(lanes_, p != 0, where) != 0; }
  int all(int p, SIM_HERE) const { return sim::ballot(lanes_, p == 0, where) == 0; }
  unsigned ballot(int p, SIM_HERE) const {
    return group().ranks_of(sim::ballot(lanes_, p != 0, where));
  }
  unsigned match_any(auto v, SIM_HERE) const {
    return group().ranks_of(sim::equal_lanes(lanes_, v, where));
  }
  unsigned match_all(auto v, int& all, SIM_HERE) const {
    return group().ranks_of(__match_all_sync(lanes_, v, &all, where));
  }

 protected:
  using thread_group::thread_group;

 private:
  const Group& group() const { return static_cast<const Group&>(*this); }
};

template <unsigned tile, class Parent = void>
class thread_block_tile : public warp_group<thread_block_tile<tile, Parent>> {
  static_assert(tile >= 1 && tile <= 32 && (tile & (tile - 1)) == 0,
                "tiles of more than a warp are not supported");

 public:
  thread_block_tile()
      : warp_group<thread_block_tile>(tile, details::thread_of_block() % tile,
                                      (tile == 32 ? ~0u : (1u << tile % 32) - 1)
                                          << details::thread_of_block() % 32 / tile * tile,
                                      false) {}
  template <class Other>
  thread_block_tile(const thread_block_tile<tile, Other>&) : thread_block_tile() {}
  static constexpr unsigned size() { return tile; }
  static constexpr unsigned num_threads() { return tile; }
  unsigned meta_group_rank() const { return details::thread_of_block() / tile; }
  unsigned meta_group_size() const { return (details::threads_of_block() + tile - 1) / tile; }
  template <class T>
  T shfl_xor(T v, unsigned mask, SIM_HERE) const {
    return sim::shuffle_any(sim::Shuffle::xor_, this->lanes_, v, static_cast<int>(mask), tile,
                            where);
  }
  int lane_of(unsigned rank) const { return first() + static_cast<int>(rank % tile); }
  unsigned ranks_of(uint32_t lanes) const { return (lanes & this->lanes_) >> first(); }

 private:
  int first() const { return std::countr_zero(this->lanes_); }
};

/// The lanes of a warp that reach a line together.
class coalesced_group : public warp_group<coalesced_group> {
 public:
  explicit coalesced_group(uint32_t lanes)
      : warp_group(static_cast<unsigned>(std::popcount(lanes)),
                   static_cast<unsigned>(
                       std::popcount(lanes & ((1u << details::thread_of_block() % 32) - 1))),
                   lanes, false) {}
  int lane_of(unsigned rank) const {
    uint32_t left = lanes_;
    for (unsigned i = 0; i < rank % size_; ++i) left &= left - 1;
    return std::countr_zero(left);
  }
  unsigned ranks_of(uint32_t lanes) const {
    unsigned ranks = 0, rank = 0;
    for (uint32_t left = lanes_; left; left &= left - 1, ++rank) {
      ranks |= (lanes >> std::countr_zero(left) & 1) << rank;
    }
    return ranks;
  }
};
inline coalesced_group coalesced_threads(SIM_HERE) {
  return coalesced_group(sim::converged_lanes(where));
}
/// For a tile of a warp, or for coalesced lanes.
coalesced_group labeled_partition(const auto& g, int label, SIM_HERE) {
  uint32_t lanes = 0;
  const unsigned ranks = g.match_any(label, where);
  for (unsigned left = ranks; left; left &= left - 1) {
    lanes |= 1u << g.lane_of(static_cast<unsigned>(std::countr_zero(left)));
  }
  return coalesced_group(lanes);
}
coalesced_group binary_partition(const auto& g, bool p, SIM_HERE) {
  return labeled_partition(g, p, where);
}

template <unsigned tile, class Parent>
thread_block_tile<tile, Parent> tiled_partition(const Parent&) {
  return {};
}
inline thread_group tiled_partition(const thread_group&, unsigned tile) {
  const unsigned me = details::thread_of_block();
  return {tile, me % tile, (tile >= 32 ? ~0u : (1u << tile) - 1) << me % 32 / tile * tile, false};
}

/// The blocks of a cluster.
class cluster_group {
 public:
  static void sync(SIM_HERE) {
    sim::cluster_arrive(where, "cluster.sync()");
    sim::cluster_wait(where, "cluster.sync()");
  }
  static void barrier_arrive(SIM_HERE) { sim::cluster_arrive(where, "barrier_arrive()"); }
  static void barrier_wait(SIM_HERE) { sim::cluster_wait(where, "barrier_wait()"); }
  static unsigned block_rank() { return sim::cluster_rank(); }
  static unsigned num_blocks() { return sim::cluster_size(); }
  static dim3 block_index() { return sim::cluster_ctaid(); }
  static dim3 dim_blocks() { return sim::cluster_nctaid(); }
  static unsigned num_threads() { return num_blocks() * details::threads_of_block(); }
  static unsigned size() { return num_threads(); }
  static unsigned thread_rank() {
    return block_rank() * details::threads_of_block() + details::thread_of_block();
  }
  template <class T>
  static T* map_shared_rank(T* p, unsigned rank) {
    return static_cast<T*>(sim::map_shared_rank(p, rank));
  }
};
inline cluster_group this_cluster() { return {}; }

class grid_group {
 public:
  /// Can it synchronise? Without a cooperative launch it only counts.
  bool is_valid() const { return sim::grid_is_together(); }
  void sync(SIM_HERE) const {
    sim::require_grid_together(where);
    sim::cluster_arrive(where, "grid.sync()");
    sim::cluster_wait(where, "grid.sync()");
  }
  unsigned long long size() const { return num_threads(); }
  unsigned long long num_threads() const {
    return details::blocks_of_grid() * details::threads_of_block();
  }
  unsigned long long num_blocks() const { return details::blocks_of_grid(); }
  unsigned long long block_rank() const { return details::block_of_grid(); }
  unsigned long long thread_rank() const {
    return details::block_of_grid() * details::threads_of_block() + details::thread_of_block();
  }
  dim3 group_dim() const { return gridDim; }
  dim3 dim_blocks() const { return gridDim; }
  dim3 block_index() const { return blockIdx; }
};
inline grid_group this_grid() { return {}; }

void sync(const auto& g, SIM_HERE) { g.sync(where); }
template <class T>
void memcpy_async(const auto& g, T* to, const T* from, auto bytes, SIM_HERE) {
  cuda::details::copy(g, to, from, bytes, where);
  sim::cp_async_commit();
}
template <int prior>
void wait_prior(const auto& g, SIM_HERE) {
  sim::cp_async_wait(prior);
  g.sync(where);
}
void wait(const auto& g, SIM_HERE) { wait_prior<0>(g, where); }

#define SIM_FUNCTOR(name, result)  \
  template <class T = void>        \
  struct name {                    \
    template <class U>             \
    U operator()(U a, U b) const { \
      return result;               \
    }                              \
  };
SIM_FUNCTOR(plus, a + b)
SIM_FUNCTOR(less, b < a ? b : a)  // as NVIDIA's: the smaller one
SIM_FUNCTOR(greater, a < b ? b : a)
SIM_FUNCTOR(bit_and, a& b)
SIM_FUNCTOR(bit_or, a | b)
SIM_FUNCTOR(bit_xor, a ^ b)
#undef SIM_FUNCTOR

template <unsigned tile, class P, class T, class F>
T reduce(const thread_block_tile<tile, P>& g, T v, F&& f, SIM_HERE) {
  for (unsigned distance = tile / 2; distance; distance /= 2) {
    v = f(v, g.shfl_xor(v, distance, where));
  }
  return v;
}
template <class T, class F>
T reduce(const coalesced_group& g, T v, F&& f, SIM_HERE) {
  T sum = g.shfl(v, 0, where);
  for (unsigned rank = 1; rank < g.size(); ++rank) sum = f(sum, g.shfl(v, rank, where));
  return sum;
}
template <class Group, class T, class F>
T inclusive_scan(const Group& g, T v, F&& f, SIM_HERE) {
  for (unsigned distance = 1; distance < g.size(); distance *= 2) {
    const T before = g.shfl_up(v, distance, where);
    if (g.thread_rank() >= distance) v = f(before, v);
  }
  return v;
}
template <class Group, class T>
T inclusive_scan(const Group& g, T v, SIM_HERE) {
  return inclusive_scan(g, v, plus<T>(), where);
}
template <class Group, class T, class F>
T exclusive_scan(const Group& g, T v, F&& f, SIM_HERE) {
  const T before = g.shfl_up(inclusive_scan(g, v, f, where), 1, where);
  return g.thread_rank() == 0 ? T{} : before;
}
template <class Group, class T>
T exclusive_scan(const Group& g, T v, SIM_HERE) {
  return exclusive_scan(g, v, plus<T>(), where);
}

}  // namespace cooperative_groups

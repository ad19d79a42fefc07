// Independent tasks on XLA's threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <new>

#include "xla/ffi/api/ffi.h"

namespace vcap {

constexpr int kPauses = 400;  // some 20 us

// Leaves the core to others for a moment.
inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// body(i) for i < count, in any order and on any thread; returns when all are done, or throws what the first threw.
//
// The caller may be a thread of the pool and takes tasks itself until none is left, so nothing is waited for that has
// not been begun: a pool whose threads all wait here cannot come to a stop.
template <typename Body>
void for_each(xla::ffi::ThreadPool& pool, int64_t count, const Body& body) {
  struct State {
    const Body* body;
    int64_t count;
    std::atomic<int64_t> next{0};
    std::mutex mutex;
    std::condition_variable changed;
    std::atomic<int64_t> done{0};
    std::exception_ptr thrown;

    void work() {
      int64_t finished = 0;
      std::exception_ptr here;
      for (int64_t i; (i = next.fetch_add(1)) < count; ++finished) {
        try {
          (*body)(i);
        } catch (...) {
          here = std::current_exception();
        }
      }
      if (finished == 0) return;
      std::lock_guard<std::mutex> lock(mutex);
      done += finished;
      if (here && !thrown) thrown = here;
      if (done == count) changed.notify_all();
    }
  };
  const int64_t helpers = std::min<int64_t>(pool.num_threads(), count) - 1;
  if (helpers <= 0) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  // Shared: a helper may get its turn only after everything is done and this call has returned.
  auto state = std::make_shared<State>();
  state->body = &body;
  state->count = count;
  for (int64_t i = 0; i < helpers; ++i) pool.Schedule([state] { state->work(); });
  state->work();
  // What is not done now has been begun, and waking up from sleep takes as long as many a call.
  for (int i = 0; i < kPauses && state->done.load(std::memory_order_relaxed) < count; ++i) pause();
  std::unique_lock<std::mutex> lock(state->mutex);
  state->changed.wait(lock, [&] { return state->done == state->count; });
  if (state->thrown) std::rethrow_exception(state->thrown);
}

// Memory for numbers, at the border of a vector. Not cleared.
class Buffer {
 public:
  explicit Buffer(int64_t size)
      : data_(static_cast<float*>(std::aligned_alloc(64, (std::max<int64_t>(size, 1) * 4 + 63) / 64 * 64))) {
    if (data_ == nullptr) throw std::bad_alloc();
  }
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  float* operator+(int64_t offset) const { return data_ + offset; }

 private:
  float* data_;
};

}  // namespace vcap

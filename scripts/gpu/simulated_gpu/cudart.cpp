// CUDA's runtime, as far as torch asks for it, on threads of the host: each stream is a thread that works off its queue.
//
// Built by scripts/gpu/on_simulated_gpu and loaded in place of libcudart.so.13 and libcuda.so.1. As adverse as CUDA may be, where that
// matters to who overlaps copies: a copy from pinned memory reads it when its turn comes, which is late by chance, and fails where
// it is not pinned any more; one of over 64 KB from other memory waits for its stream; two streams keep no order but that of
// events; fresh memory is full of 0xCD; memory of a file, or read-only, cannot be pinned. A call that needs a context makes one
// on the device that is current in its thread, which is 0 in a new thread; also one that only waits. Kernels it has none but
// torch's spin_kernel: operators.py launches torch's operators for the CPU as kernels. Triton's are launched and do nothing.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

double setting(const char* name, double otherwise) {
  const char* value = getenv(name);
  return value ? atof(value) : otherwise;
}
const int kDevices = (int)setting("SIMULATED_GPUS", 1);
const double kLateMicroseconds = setting("SIMULATED_LATE_US", 200);
const double kBusBytesPerSecond = setting("SIMULATED_BUS_GBS", 0) * 1e9;
const size_t kMemoryBytes = (size_t)(setting("SIMULATED_MEMORY_GB", 4) * 1e9);
const size_t kPinnedBytes = (size_t)(setting("SIMULATED_PINNED_GB", 1e3) * 1e9);
const double kCyclesPerNanosecond = 1.98;
// So much is copied without waiting from memory that is not pinned (CUDA Programming Guide, "Concurrent Execution between Host and
// Device"); with more, cudaMemcpyAsync "might be synchronous" (CUDA Runtime API, "API synchronization behavior").
const size_t kUnpinnedBytes = 64 << 10;

struct Done {
  bool is_done = false;
  Clock::time_point when;
};
using DonePtr = std::shared_ptr<Done>;

struct Work {
  std::function<void()> action;
  DonePtr done, needs;
};

// What is captured is done in the order in which it was captured, whichever stream it was for.
struct Capture {
  unsigned long long id;
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  bool is_broken = false;
  std::vector<std::function<void()>> actions;
};

struct Stream {
  int device, priority = 0;
  Capture* capture = nullptr;
  bool is_served = false, is_closing = false;
  std::deque<Work> work;
  DonePtr last;
};

struct Event {
  int device;
  DonePtr recorded;
  Capture* capture = nullptr;
};

enum class Kind { pinned, registered, device };

struct Block {
  size_t bytes;
  Kind kind;
  int device;
  int file;  // of device memory: another process may map it
};

struct World {
  std::map<int, Stream*> null_streams;
  std::set<Stream*> streams;
  std::map<uintptr_t, Block> blocks;
  std::map<int, size_t> used;
  std::map<int, bool> has_context;
  size_t pinned = 0;
  std::unordered_map<const void*, std::string> kernels;
  std::set<Capture*> captures;
  cudaError_t lost = cudaSuccess;  // an error that stays
};

// never destroyed: threads of streams outlive main
std::mutex& mutex = *new std::mutex;
std::condition_variable& changed = *new std::condition_variable;
World& world = *new World;
std::atomic<bool> has_ended{false};
thread_local int current = 0;
thread_local cudaError_t last_error = cudaSuccess;
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

using Lock = std::unique_lock<std::mutex>;

cudaError_t failed(cudaError_t error) { return last_error = error; }

// Say whether this thread may make a call that is unsafe while streams are captured; each capture that forbids it is broken by it
// (CUDA Runtime API, cudaThreadExchangeStreamCaptureMode).
bool may_be_unsafe() {
  if (capture_mode == cudaStreamCaptureModeRelaxed) return true;
  Lock lock(mutex);
  bool may = true;
  for (Capture* capture : world.captures) {
    bool is_own = capture->thread == std::this_thread::get_id();
    if (is_own ? capture->mode == cudaStreamCaptureModeRelaxed
               : capture_mode != cudaStreamCaptureModeGlobal || capture->mode != cudaStreamCaptureModeGlobal)
      continue;
    capture->is_broken = true;
    may = false;
  }
  return may;
}
#define SAFE \
  if (!may_be_unsafe()) return failed(cudaErrorStreamCaptureUnsupported)

// "The runtime creates a CUDA context for each device in the system ... at the first runtime function which requires an active
// context": the primary context of the device that is current (CUDA Programming Guide, "Initialization").
void need_context() {
  Lock lock(mutex);
  world.has_context[current] = true;
}

// Python's lock must not be held while one waits: what one waits for may be Python's.
class WithoutPython {
 public:
  WithoutPython() {
    static auto initialized = (int (*)())dlsym(RTLD_DEFAULT, "Py_IsInitialized");
    static auto holds = (int (*)())dlsym(RTLD_DEFAULT, "PyGILState_Check");
    static auto save = (void* (*)())dlsym(RTLD_DEFAULT, "PyEval_SaveThread");
    if (initialized && initialized() && holds()) state_ = save();
  }
  ~WithoutPython() {
    static auto restore = (void (*)(void*))dlsym(RTLD_DEFAULT, "PyEval_RestoreThread");
    if (state_) restore(state_);
  }

 private:
  void* state_ = nullptr;
};

// -- streams

void serve(Stream* stream) {
  Lock lock(mutex);
  while (true) {
    changed.wait(lock, [&] {
      return stream->work.empty() ? stream->is_closing : !stream->work.front().needs || stream->work.front().needs->is_done;
    });
    if (stream->work.empty()) return;
    Work work = std::move(stream->work.front());
    stream->work.pop_front();
    lock.unlock();
    if (work.action) work.action();
    work.action = nullptr;
    lock.lock();
    work.done->is_done = true;
    work.done->when = Clock::now();
    changed.notify_all();
  }
}

Stream* find(cudaStream_t stream) {  // with the lock
  if (stream && stream != cudaStreamLegacy && stream != cudaStreamPerThread) return (Stream*)stream;
  Stream*& found = world.null_streams[current];
  if (!found) world.streams.insert(found = new Stream{current});
  return found;
}

DonePtr add(cudaStream_t to, std::function<void()> action, DonePtr needs = nullptr) {
  Lock lock(mutex);
  world.has_context[current] = true;
  Stream* stream = find(to);
  if (stream->capture) {
    if (action) stream->capture->actions.push_back(std::move(action));
    return nullptr;
  }
  if (!stream->is_served) std::thread(serve, stream).detach();
  stream->is_served = true;
  stream->last = std::make_shared<Done>();
  stream->work.push_back({std::move(action), stream->last, std::move(needs)});
  changed.notify_all();
  return stream->last;
}

cudaError_t wait(const DonePtr& work) {
  if (work) {
    WithoutPython released;
    Lock lock(mutex);
    changed.wait(lock, [&] { return work->is_done; });
  }
  return world.lost;
}

cudaError_t wait_for_device(int device) {
  std::vector<DonePtr> all;
  {
    Lock lock(mutex);
    for (Stream* stream : world.streams)
      if (stream->device == device) all.push_back(stream->last);
  }
  for (const DonePtr& work : all) wait(work);
  return world.lost;
}

// -- memory

Block* block_at(const void* address) {  // with the lock
  auto next = world.blocks.upper_bound((uintptr_t)address);
  if (next == world.blocks.begin()) return nullptr;
  auto& [start, block] = *std::prev(next);
  return (uintptr_t)address < start + block.bytes ? &block : nullptr;
}

bool is_there(const void* address) {
  Lock lock(mutex);
  return block_at(address);
}

void lose(cudaError_t error) {
  Lock lock(mutex);
  world.lost = error;
}

cudaError_t allocate(void** address, size_t asked, Kind kind) {
  *address = nullptr;
  if (!asked) return cudaSuccess;
  size_t bytes = (asked + 4095) & ~size_t(4095);
  Lock lock(mutex);
  world.has_context[current] = true;
  bool on_device = kind == Kind::device;
  size_t& used = on_device ? world.used[current] : world.pinned;
  if (used + bytes > (on_device ? kMemoryBytes : kPinnedBytes)) return failed(cudaErrorMemoryAllocation);
  int file = memfd_create("simulated", 0);
  if (file < 0 || ftruncate(file, bytes)) return failed(cudaErrorMemoryAllocation);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return failed(cudaErrorMemoryAllocation);
  if (on_device) memset(memory, 0xCD, bytes);
  used += bytes;
  world.blocks[(uintptr_t)memory] = {bytes, kind, current, file};
  *address = memory;
  return cudaSuccess;
}

cudaError_t release(void* address) {
  if (!address) return cudaSuccess;
  for (int device = 0; device < kDevices; device++) wait_for_device(device);
  Lock lock(mutex);
  auto found = world.blocks.find((uintptr_t)address);
  if (found == world.blocks.end()) return failed(cudaErrorInvalidValue);
  auto [bytes, kind, device, file] = found->second;
  (kind == Kind::device ? world.used[device] : world.pinned) -= bytes;
  world.blocks.erase(found);
  munmap(address, bytes);
  close(file);
  return cudaSuccess;
}

// Say whether the driver would pin memory: mapped all along and writable; or, to be read only, a file that is shared.
bool can_be_pinned(const void* address, size_t bytes, bool read_only) {
  uintptr_t at = (uintptr_t)address, end = at + bytes;
  FILE* maps = fopen("/proc/self/maps", "r");
  char line[4096];
  while (at < end && fgets(line, sizeof line, maps)) {
    unsigned long start, stop, offset, inode;
    char access[8], device[16];
    if (sscanf(line, "%lx-%lx %7s %lx %15s %lu", &start, &stop, access, &offset, device, &inode) != 6) continue;
    if (at < start || at >= stop) continue;
    if (inode ? !read_only || access[3] != 's' : access[1] != 'w' && !read_only) break;
    at = stop;
  }
  fclose(maps);
  return at >= end;
}

// One engine carries all copies; with a bus of a given speed, in the time that it needs.
void carry(void* to, const void* from, size_t bytes) {
  static std::mutex& engine = *new std::mutex;
  static thread_local std::mt19937 random(std::random_device{}());
  if (kLateMicroseconds > 0)
    std::this_thread::sleep_for(
        std::chrono::duration<double, std::micro>(std::exponential_distribution<double>(1 / kLateMicroseconds)(random)));
  std::lock_guard<std::mutex> one(engine);
  auto begun = Clock::now();
  memmove(to, from, bytes);
  if (kBusBytesPerSecond > 0) std::this_thread::sleep_until(begun + std::chrono::duration<double>(bytes / kBusBytesPerSecond));
}

cudaError_t copy(void* to, const void* from, size_t bytes, cudaStream_t stream, bool waits) {
  bool to_pageable, from_pageable;
  {
    Lock lock(mutex);
    Block *there = block_at(to), *here = block_at(from);
    to_pageable = !there, from_pageable = !here;
    auto passes = [&](Block* block, const void* address) { return block && bytes && block_at((char*)address + bytes - 1) != block; };
    if (passes(there, to) || passes(here, from)) return world.lost = cudaErrorIllegalAddress;
  }
  DonePtr done;
  if (from_pageable) {  // staged before this returns
    if (bytes > kUnpinnedBytes) cudaStreamSynchronize(stream);
    auto staged = std::make_shared<std::string>((const char*)from, bytes);
    done = add(stream, [=] { carry(to, staged->data(), bytes); });
  } else {
    done = add(stream, [=] { is_there(from) ? carry(to, from, bytes) : lose(cudaErrorIllegalAddress); });
  }
  return waits || to_pageable ? wait(done) : world.lost;
}

struct MemoryHandle {
  int process, file, device;
  size_t bytes;
};

}  // namespace

#define OK return cudaSuccess

extern "C" {

// -- devices

cudaError_t cudaGetDeviceCount(int* count) { return (*count = kDevices) ? cudaSuccess : failed(cudaErrorNoDevice); }
cudaError_t cudaGetDevice(int* device) { *device = current; OK; }
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kDevices) return failed(cudaErrorInvalidDevice);
  Lock lock(mutex);
  world.has_context[current = device] = true;
  OK;
}
cudaError_t cudaDriverGetVersion(int* version) { *version = CUDART_VERSION; OK; }
cudaError_t cudaRuntimeGetVersion(int* version) { *version = CUDART_VERSION; OK; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* found, int device) {
  if (device < 0 || device >= kDevices) return failed(cudaErrorInvalidDevice);
  *found = {};
  snprintf(found->name, sizeof found->name, "simulated by threads of the host");
  found->totalGlobalMem = kMemoryBytes;
  found->major = 9;
  found->multiProcessorCount = 132;
  found->warpSize = 32;
  found->maxThreadsPerBlock = found->maxThreadsDim[0] = found->maxThreadsDim[1] = 1024;
  found->maxThreadsDim[2] = 64;
  found->maxThreadsPerMultiProcessor = 2048;
  found->regsPerBlock = found->regsPerMultiprocessor = 65536;
  found->sharedMemPerBlock = 49152;
  found->sharedMemPerBlockOptin = 232448;
  found->sharedMemPerMultiprocessor = 233472;
  found->maxGridSize[0] = 2147483647;
  found->maxGridSize[1] = found->maxGridSize[2] = 65535;
  found->l2CacheSize = 50 << 20;
  found->asyncEngineCount = 1;
  found->unifiedAddressing = found->canMapHostMemory = found->concurrentKernels = 1;
  found->pciDeviceID = device;
  OK;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr name, int) {
  static const std::map<int, int> known = {{cudaDevAttrMultiProcessorCount, 132},
                                           {cudaDevAttrComputeCapabilityMajor, 9},
                                           {cudaDevAttrWarpSize, 32},
                                           {cudaDevAttrMaxThreadsPerBlock, 1024},
                                           {cudaDevAttrClockRate, 1980000},
                                           {cudaDevAttrMaxSharedMemoryPerBlockOptin, 232448}};
  auto found = known.find(name);
  *value = found == known.end() ? 0 : found->second;
  OK;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) { snprintf(text, size, "0000:%02x:00.0", device); OK; }
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { *can = 0; OK; }
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { OK; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { *least = 0; *greatest = -5; OK; }
// No thread may do it while a stream is captured, whatever its mode.
cudaError_t cudaDeviceSynchronize() {
  need_context();
  SAFE;
  {
    Lock lock(mutex);
    for (Capture* capture : world.captures) capture->is_broken = true;
    if (!world.captures.empty()) return failed(cudaErrorStreamCaptureUnsupported);
  }
  return wait_for_device(current);
}
cudaError_t cudaProfilerStart() { OK; }
cudaError_t cudaProfilerStop() { OK; }

// -- errors

const char* cudaGetErrorName(cudaError_t) { return "cudaErrorSimulated"; }
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorHostMemoryAlreadyRegistered: return "part or all of the requested memory range is already mapped";
    case cudaErrorNotSupported: return "operation not supported";
    default: return "simulated error";
  }
}
cudaError_t cudaPeekAtLastError() { return world.lost ? world.lost : last_error; }
cudaError_t cudaGetLastError() {
  cudaError_t error = cudaPeekAtLastError();
  last_error = cudaSuccess;
  return error;
}

// -- streams and events

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* made, unsigned, int priority) {
  Lock lock(mutex);
  world.has_context[current] = true;
  Stream* stream = new Stream{current, priority};
  world.streams.insert(stream);
  *made = (cudaStream_t)stream;
  OK;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* made, unsigned flags) { return cudaStreamCreateWithPriority(made, flags, 0); }
cudaError_t cudaStreamCreate(cudaStream_t* made) { return cudaStreamCreateWithPriority(made, 0, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Lock lock(mutex);
  ((Stream*)stream)->is_closing = true;
  changed.notify_all();
  OK;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) { *priority = stream ? ((Stream*)stream)->priority : 0; OK; }
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  need_context();
  SAFE;
  Lock lock(mutex);
  DonePtr last = find(stream)->last;
  return last && !last->is_done ? cudaErrorNotReady : world.lost;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  need_context();
  SAFE;
  DonePtr last;
  {
    Lock lock(mutex);
    last = find(stream)->last;
  }
  return wait(last);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  need_context();
  DonePtr needs;
  {
    Lock lock(mutex);
    needs = ((Event*)event)->recorded;
    // what waits for a captured event is captured from then on
    if (Capture* capture = ((Event*)event)->capture) find(stream)->capture = capture;
  }
  if (needs) add(stream, nullptr, needs);
  OK;
}
// -- graphs

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  static unsigned long long ids = 0;
  Lock lock(mutex);
  Capture* capture = new Capture{++ids, mode, std::this_thread::get_id()};
  world.captures.insert(capture);
  find(stream)->capture = capture;
  OK;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* made) {
  Lock lock(mutex);
  Capture* capture = find(stream)->capture;
  *made = nullptr;
  if (!capture) return failed(cudaErrorIllegalState);
  for (Stream* each : world.streams)
    if (each->capture == capture) each->capture = nullptr;
  world.captures.erase(capture);
  if (capture->is_broken) return failed(cudaErrorStreamCaptureInvalidated);
  *made = (cudaGraph_t)capture;
  OK;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  Lock lock(mutex);
  Capture* capture = find(stream)->capture;
  *status = !capture            ? cudaStreamCaptureStatusNone
            : capture->is_broken ? cudaStreamCaptureStatusInvalidated
                                 : cudaStreamCaptureStatusActive;
  OK;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t* count) {
  cudaStreamIsCapturing(stream, status);
  Lock lock(mutex);
  Capture* capture = find(stream)->capture;
  if (id) *id = capture ? capture->id : 0;
  if (graph) *graph = (cudaGraph_t)capture;
  if (count) *count = 0;
  OK;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) { std::swap(*mode, capture_mode); OK; }
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) { *count = ((Capture*)graph)->actions.size(); OK; }
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  *made = (cudaGraphExec_t) new Capture(*(Capture*)graph);
  OK;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  return cudaGraphInstantiateWithFlags(made, graph, 0);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  for (auto& action : ((Capture*)graph)->actions) add(stream, action);
  OK;
}
cudaError_t cudaGraphDestroy(cudaGraph_t) { OK; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { OK; }

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t call, void* data) { add(stream, [=] { call(data); }); OK; }
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t call, void* data, unsigned) {
  add(stream, [=] { call(stream, cudaSuccess, data); });
  OK;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* made, unsigned) {
  Lock lock(mutex);
  world.has_context[current] = true;
  *made = (cudaEvent_t) new Event{current};
  OK;
}
cudaError_t cudaEventCreate(cudaEvent_t* made) { return cudaEventCreateWithFlags(made, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { delete (Event*)event; OK; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  {
    Lock lock(mutex);
    if (find(stream)->device != ((Event*)event)->device) return failed(cudaErrorInvalidResourceHandle);
  }
  DonePtr recorded = add(stream, nullptr);
  Lock lock(mutex);
  ((Event*)event)->recorded = recorded;
  ((Event*)event)->capture = find(stream)->capture;
  OK;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) { return cudaEventRecord(event, stream); }
cudaError_t cudaEventQuery(cudaEvent_t event) {
  need_context();
  SAFE;
  Lock lock(mutex);
  DonePtr recorded = ((Event*)event)->recorded;
  return recorded && !recorded->is_done ? cudaErrorNotReady : world.lost;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  need_context();
  SAFE;
  DonePtr recorded;
  {
    Lock lock(mutex);
    recorded = ((Event*)event)->recorded;
  }
  return wait(recorded);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  need_context();
  Lock lock(mutex);
  DonePtr begun = ((Event*)from)->recorded, ended = ((Event*)to)->recorded;
  if (!begun || !ended) return failed(cudaErrorInvalidResourceHandle);
  if (!begun->is_done || !ended->is_done) return failed(cudaErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(ended->when - begun->when).count();
  OK;
}

// -- memory

cudaError_t cudaMalloc(void** made, size_t bytes) { SAFE; return allocate(made, bytes, Kind::device); }
cudaError_t cudaHostAlloc(void** made, size_t bytes, unsigned) { SAFE; return allocate(made, bytes, Kind::pinned); }
cudaError_t cudaMallocHost(void** made, size_t bytes) { SAFE; return allocate(made, bytes, Kind::pinned); }
cudaError_t cudaFree(void* address) { need_context(); SAFE; return release(address); }
cudaError_t cudaFreeHost(void* address) { need_context(); SAFE; return release(address); }
cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned flags) {
  SAFE;
  if (!bytes || !can_be_pinned(address, bytes, flags & cudaHostRegisterReadOnly)) return failed(cudaErrorInvalidValue);
  Lock lock(mutex);
  world.has_context[current] = true;
  if (block_at(address) || block_at((char*)address + bytes - 1)) return failed(cudaErrorHostMemoryAlreadyRegistered);
  if (world.pinned + bytes > kPinnedBytes) return failed(cudaErrorMemoryAllocation);
  world.pinned += bytes;
  world.blocks[(uintptr_t)address] = {bytes, Kind::registered, current, -1};
  OK;
}
cudaError_t cudaHostUnregister(void* address) {
  need_context();
  SAFE;
  Lock lock(mutex);
  auto found = world.blocks.find((uintptr_t)address);
  if (found == world.blocks.end() || found->second.kind != Kind::registered) return failed(cudaErrorHostMemoryNotRegistered);
  world.pinned -= found->second.bytes;
  world.blocks.erase(found);
  OK;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  Lock lock(mutex);
  world.has_context[current] = true;
  *total = kMemoryBytes;
  *free = kMemoryBytes - world.used[current];
  OK;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void* address) {
  need_context();
  Lock lock(mutex);
  Block* block = block_at(address);
  bool on_device = block && block->kind == Kind::device;
  *found = {};
  found->type = !block ? cudaMemoryTypeUnregistered : on_device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
  found->device = block ? block->device : -2;
  found->devicePointer = block ? (void*)address : nullptr;
  found->hostPointer = on_device ? nullptr : (void*)address;
  OK;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return copy(to, from, bytes, stream, false);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) { return copy(to, from, bytes, nullptr, true); }
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  return copy(to, from, bytes, stream, false);
}
cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t stream) {
  add(stream, [=] { memset(address, value, bytes); });
  OK;
}
cudaError_t cudaMemset(void* address, int value, size_t bytes) { return wait(add(nullptr, [=] { memset(address, value, bytes); })); }
cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) { OK; }

// Another process maps the same memory; it has seen all that was launched before an event was handed out.
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
  Lock lock(mutex);
  Block* block = block_at(address);
  if (!block || block->kind != Kind::device) return failed(cudaErrorInvalidValue);
  *(MemoryHandle*)handle = {getpid(), block->file, block->device, block->bytes};
  OK;
}
cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned) {
  auto* sent = (MemoryHandle*)&handle;
  std::string path = "/proc/" + std::to_string(sent->process) + "/fd/" + std::to_string(sent->file);
  int file = open(path.c_str(), O_RDWR);
  void* memory = file < 0 ? MAP_FAILED : mmap(nullptr, sent->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return failed(cudaErrorInvalidValue);
  Lock lock(mutex);
  world.used[current] += sent->bytes;
  world.blocks[(uintptr_t)memory] = {sent->bytes, Kind::device, current, file};
  *address = memory;
  OK;
}
cudaError_t cudaIpcCloseMemHandle(void* address) { return release(address); }
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  *handle = {};
  return cudaEventSynchronize(event);
}
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* made, cudaIpcEventHandle_t) { return cudaEventCreateWithFlags(made, 0); }

// -- kernels

struct Configuration {
  dim3 grid, block;
  size_t shared;
  void* stream;
};
static thread_local Configuration configuration;

void** __cudaRegisterFatBinary(void*) {
  static void* handle[1];
  return handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* kernel, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) {
  world.kernels[kernel] = name;
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
  configuration = {grid, block, shared, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *(void**)stream = configuration.stream;
  OK;
}
cudaError_t __cudaGetKernel(cudaKernel_t* found, const void* kernel) { *found = (cudaKernel_t)kernel; OK; }
cudaError_t cudaLaunchKernel(const void* kernel, dim3, dim3, void** arguments, size_t, cudaStream_t stream) {
  const std::string& name = world.kernels[kernel];
  if (name.find("spin_kernel") == std::string::npos) {
    fprintf(stderr, "simulated GPU: there is no kernel %s\n", name.c_str());
    return failed(cudaErrorNotSupported);
  }
  std::chrono::nanoseconds time((long)(*(int64_t*)arguments[0] / kCyclesPerNanosecond));
  add(stream, [=] { std::this_thread::sleep_for(time); });
  OK;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream) {
  return cudaLaunchKernel((void*)kernel, grid, block, arguments, shared, stream);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* found, const void*) {
  *found = {};
  found->maxThreadsPerBlock = 1024;
  OK;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { OK; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* count, const void*, int, size_t) { *count = 2; OK; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* count, const void*, int, size_t, unsigned) { *count = 2; OK; }

// -- the driver, which torch and Triton ask for a little

void simulated_missing() {
  fprintf(stderr, "simulated GPU: a function of the driver that it has not was called\n");
  abort();
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** found, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *found = dlsym(RTLD_DEFAULT, name);
  if (result) *result = *found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  if (!*found) *found = (void*)simulated_missing;
  OK;
}
CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* version) { *version = CUDART_VERSION; return CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult, const char** text) { *text = "simulated error"; return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* device, int index) { *device = index; return CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute name, CUdevice device) {
  return (CUresult)cudaDeviceGetAttribute(value, (cudaDeviceAttr)name, device);
}
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* is_active) {
  Lock lock(mutex);
  *flags = 0;
  *is_active = world.has_context[device];
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) { *context = (CUcontext)(intptr_t)(device + 1); return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext* context) { *context = (CUcontext)(intptr_t)(current + 1); return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) { current = (int)(intptr_t)context - 1; return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice* device) { *device = current; return CUDA_SUCCESS; }
CUresult cuCtxGetLimit(size_t* value, CUlimit) { *value = 0; return CUDA_SUCCESS; }
CUresult cuCtxSetLimit(CUlimit, size_t) { return CUDA_SUCCESS; }
CUresult cuPointerGetAttribute(void* value, CUpointer_attribute name, CUdeviceptr address) {
  if (name != CU_POINTER_ATTRIBUTE_DEVICE_POINTER) return CUDA_ERROR_NOT_SUPPORTED;
  *(CUdeviceptr*)value = address;
  return CUDA_SUCCESS;
}
#undef cuMemGetAddressRange
CUresult cuMemGetAddressRange(CUdeviceptr* start, size_t* bytes, CUdeviceptr address) {
  Lock lock(mutex);
  Block* block = block_at((void*)address);
  if (!block) return CUDA_ERROR_INVALID_VALUE;
  if (start) *start = std::prev(world.blocks.upper_bound(address))->first;
  if (bytes) *bytes = block->bytes;
  return CUDA_SUCCESS;
}
CUresult cuModuleLoad(CUmodule* made, const char*) { *made = (CUmodule)1; return CUDA_SUCCESS; }
CUresult cuModuleLoadData(CUmodule* made, const void*) { *made = (CUmodule)1; return CUDA_SUCCESS; }
CUresult cuModuleLoadDataEx(CUmodule* made, const void*, unsigned, CUjit_option*, void**) { *made = (CUmodule)1; return CUDA_SUCCESS; }
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction* found, CUmodule, const char*) { *found = (CUfunction)1; return CUDA_SUCCESS; }
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute, CUfunction) { *value = 0; return CUDA_SUCCESS; }
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  return (CUresult)cudaStreamIsCapturing((cudaStream_t)stream, (cudaStreamCaptureStatus*)status);
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return (CUresult)cudaThreadExchangeStreamCaptureMode((cudaStreamCaptureMode*)mode);
}
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream stream, void**, void**) {
  add((cudaStream_t)stream, nullptr);
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* how, CUfunction, void**, void**) {
  add((cudaStream_t)how->hStream, nullptr);
  return CUDA_SUCCESS;
}

CUresult simulated_batch(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes, size_t count, CUmemcpyAttributes* how, size_t* first, size_t ways,
                         size_t*, CUstream stream) asm("cuMemcpyBatchAsync");
CUresult simulated_batch(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes, size_t count, CUmemcpyAttributes* how, size_t* first, size_t ways,
                         size_t*, CUstream stream) {
  if (!stream || !count || ways != 1 || first[0] || how->srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM || how->flags)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t n = 0; n < count; n++) {
    if (!bytes[n]) return CUDA_ERROR_INVALID_VALUE;
    copy((void*)to[n], (void*)from[n], bytes[n], (cudaStream_t)stream, false);
  }
  return CUDA_SUCCESS;
}

// -- for operators.py

void simulated_launch(void* stream, void (*call)(int64_t), int64_t kernel) {
  add((cudaStream_t)stream, [=] {
    if (!has_ended) call(kernel);
  });
}
// What is captured is called by every replay.
int simulated_is_captured(void* stream) {
  Lock lock(mutex);
  return find((cudaStream_t)stream)->capture != nullptr;
}
void simulated_synchronize(void* stream) { cudaStreamSynchronize((cudaStream_t)stream); }
// From here on every call answers with this error, as after a kernel that went astray.
void simulated_lose(int error) { lose((cudaError_t)error); }
// Python ends: no kernel may be called any more.
void simulated_end() {
  for (int device = 0; device < kDevices; device++) wait_for_device(device);
  has_ended = true;
}
size_t simulated_used(int device) { return world.used[device]; }
size_t simulated_pinned() { return world.pinned; }
}

/// \file
/// The C interface of a step's shared library, build/gpu/steps/lib01_naive.so and so on.
///
/// It holds the kernels of the step's program, without the program: a caller with tensors of its
/// own (scripts/peers.py) runs them between the runs of another library and times both with one
/// clock.
///
/// A function that returns int gives the programs' exit status: 0 done, 1 CUDA or the simulator
/// reports an error, 2 bad use, 3 no memory or no device; except for 0, fa_last_error() has the
/// sentence. A library serves one thread at a time. It uses GPU 0 (CUDA_VISIBLE_DEVICES chooses).
/// Plain C.
///
/// The simulator's library, build/sim/steps/lib01_naive.so, has a block's shared memory in
/// thread-local storage. A process has room for it that is linked with the library or starts with
/// it (LD_PRELOAD); in another dlopen() fails: "cannot allocate memory in static TLS block".
///
/// After an illegal address or another error that CUDA does not forget, each call that needs the
/// device fails with a sentence that says so; only a new process helps.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define FA_EXPORT __attribute__((visibility("default")))  ///< all else is hidden

#ifdef __cplusplus
extern "C" {
#endif

/// Which keys a row sees, as fa::Mask in common/harness/mask.h; all that is given must hold.
typedef struct {
  int32_t left, right;         ///< of a window: keys before and behind a row's own; -1: no limit
  int32_t documents;           ///< packed behind each other; 0: all rows and keys are one
  const int32_t* row_lengths;  ///< [documents] rows of each, N in all; in host memory
  const int32_t* key_lengths;  ///< [documents] keys of each, Nk in all; null: as many as rows
  const char* predicate;       ///< as --mask: "strided:64"; null: none
} FaMask;

/// One attention problem; what the sizes mean: fa::Problem in common/harness/problem.h.
///
/// `page` and `lengths` are of a KV cache; zero where there is none. A step or variant whose
/// "supports" in fa_describe() lacks them refuses them.
typedef struct {
  int32_t B;       ///< batch
  int32_t H;       ///< query heads
  int32_t Hkv;     ///< key and value heads; H is a multiple of it
  int32_t N;       ///< queries
  int32_t Nk;      ///< keys
  int32_t d;       ///< head dimension
  int32_t causal;  ///< not 0: key c is visible to row r when c <= r + (keys of the entry) - N
  int32_t page;    ///< keys of a page: 16, 32, 64, 128 or 256; 0: K and V are not paged
  const int32_t* lengths;  ///< [B] in host memory, keys of each batch entry, 0 .. Nk; null: Nk
  const FaMask* mask;      ///< null: none but causal. Tables are made where it is another than last
} FaProblem;

/// Device pointers, aligned to 16 bytes, to row-major contiguous tensors of the variant's type
/// (LSE: fp32). The prepare reads Q, K, V. The forward reads Q, K, V and writes O, and LSE if the
/// variant writes it. Both ignore the rest. The backward reads Q, K, V, O, LSE, dO and writes dQ,
/// dK, dV.
///
/// Key c of batch entry b lies in page table[b, c / page], at row c % page. The pool may have any
/// number of pages, and batch entries may share them. Rows behind an entry's last key and the
/// table's entries for them are not read. The library cannot check what the table holds: a page
/// outside of the pool is an illegal address.
typedef struct {
  const void* Q;         ///< [B, H, N, d]
  const void* K;         ///< [B, Hkv, Nk, d]; with pages [pages, Hkv, page, d]
  const void* V;         ///< as K
  void* O;               ///< [B, H, N, d]
  float* LSE;            ///< [B, H, N], natural logarithm; null where the variant writes none
  const void* dO;        ///< [B, H, N, d]
  void* dQ;              ///< [B, H, N, d]
  void* dK;              ///< [B, Hkv, Nk, d]
  void* dV;              ///< [B, Hkv, Nk, d]
  const int32_t* table;  ///< [B, ceil(Nk / page)]; null without pages
} FaTensors;

/// The step as JSON, as the program's --describe prints it (docs/json.md). Needs no device. Valid
/// until the library is unloaded.
FA_EXPORT const char* fa_describe(void);

/// The sentence of the last call that failed; "" before. Valid until the next call fails.
FA_EXPORT const char* fa_last_error(void);

/// Status 2 when the step does not support the problem. A variant may support less: its calls then
/// fail with status 2. Needs no device.
FA_EXPORT int fa_check(const FaProblem* problem);

/// Bytes of workspace that a variant (its place in fa_describe()'s list) takes for a problem,
/// prepare, forward and backward together.
FA_EXPORT int fa_workspace_bytes(int variant, const FaProblem* problem, size_t* bytes);

/// As fa_forward(), for a variant that has it: what it computes from Q, K and V alone stays in the
/// workspace, and the forward reads it there. An application does this work where it makes these
/// tensors, so it is a call of its own, and peers.py does not time it.
FA_EXPORT int fa_prepare(int variant, const FaProblem* problem, const FaTensors* tensors,
                         void* stream);

/// Queues the kernels of the variant's forward and returns (in the simulator: runs them).
///
/// All work goes to `stream`, a cudaStream_t; null is the legacy default stream. The simulator has
/// no streams and ignores it.
///
/// A variant's first run, and one that needs more workspace than its runs before, allocates it,
/// which waits for the GPU. The workspace is kept for the runs to come, on whatever stream: two
/// streams that run one variant must be ordered by the caller.
///
/// Where the variant has a prepare, its last one must have been of the same problem and the same
/// Q, K and V: else status 2. After new values were written into them it must run again.
///
/// `lengths` are read before it returns, and copied to the device, in the order of the stream, if
/// they differ from those of the variant's last run.
///
/// A stream may be captured into a CUDA graph once the variant has run with this problem outside of
/// the capture (status 2 before that: nothing can be allocated or copied meanwhile). The graph
/// holds the addresses of tensors and workspace: it must not be replayed after a run that needed
/// more workspace, had other lengths or another mask, or after fa_release().
FA_EXPORT int fa_forward(int variant, const FaProblem* problem, const FaTensors* tensors,
                         void* stream);

/// As fa_forward(). O and LSE may be of any forward that writes both. A variant that writes no
/// LSE finds P in its workspace: its last forward must have been of the same tensors. Status 2 when
/// it was of another problem, or when there was none.
FA_EXPORT int fa_backward(int variant, const FaProblem* problem, const FaTensors* tensors,
                          void* stream);

/// Waits for the GPU and frees the workspace of all variants.
FA_EXPORT int fa_release(void);

/// Device memory, for a caller who has no CUDA of its own, and for the simulator, whose kernels may
/// touch no other. `*p` is null after a failure.
FA_EXPORT int fa_malloc(void** p, size_t bytes);
/// Frees what fa_malloc() gave; null is allowed.
FA_EXPORT int fa_free(void* p);
/// Copies host memory to the device, after all that was queued before on any stream; waits.
FA_EXPORT int fa_upload(void* to, const void* from, size_t bytes);
/// Copies device memory to the host, after all that was queued before on any stream; waits.
FA_EXPORT int fa_download(void* to, const void* from, size_t bytes);

#ifdef __cplusplus
}
#endif

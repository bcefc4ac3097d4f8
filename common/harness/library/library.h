/// \file
/// The C interface of a step's shared library, build/gpu/steps/lib01_naive.so and so on.
///
/// It holds the kernels of the step's program without the program: a caller with its own tensors
/// (scripts/peers.py) runs them between the runs of another library and times both with one clock.
///
/// A function that returns int gives the programs' exit status: 0 done, 1 CUDA or the simulator
/// reports an error, 2 bad use, 3 no memory or no device. After any but 0, fa_last_error() has the
/// sentence. A library serves one thread at a time, on GPU 0 (CUDA_VISIBLE_DEVICES chooses).
///
/// The simulator's library, build/sim/steps/lib01_naive.so, keeps a block's shared memory in
/// thread-local storage. Only a process that is linked with the library or preloads it (LD_PRELOAD)
/// has room for that; elsewhere dlopen() fails: "cannot allocate memory in static TLS block".
///
/// After an illegal address or another permanent CUDA error, each call that needs the device fails
/// with a sentence that says so; start a new process.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define FA_EXPORT __attribute__((visibility("default")))  ///< all else is hidden

#ifdef __cplusplus
extern "C" {
#endif

/// Which keys a row sees, as fa::Mask in common/harness/mask.h; all conditions must hold.
typedef struct {
  int32_t left, right;         ///< window: keys before and after a row's own; -1: no limit
  int32_t documents;           ///< packed one after another; 0: all rows and keys are one
  const int32_t* row_lengths;  ///< [documents] rows of each, N in all; in host memory
  const int32_t* key_lengths;  ///< [documents] keys of each, Nk in all; null: as many as rows
  /// As --mask: "strided:64"; or "tiles": the two fields below, read only then. Null: none.
  const char* predicate;
  int32_t tile_heads;    ///< heads whose tiles differ: 1, H or B*H
  const uint8_t* tiles;  ///< [tile_heads, ceil(N / 128), ceil(Nk / 128)]: 1 if seen, or 0; host
} FaMask;

/// One attention problem; fa::Problem in common/harness/problem.h explains the sizes.
///
/// `page` and `lengths` describe a KV cache; zero where there is none. A step or variant refuses
/// them when its "supports" in fa_describe() lacks them.
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
  const FaMask* mask;      ///< null: only causal. A change of mask rebuilds the tables
} FaProblem;

/// Device pointers, aligned to 16 bytes, to row-major contiguous tensors of the variant's type
/// (LSE: fp32). The prepare reads Q, K, V. The forward reads Q, K, V and writes O, and LSE if the
/// variant writes it. The backward reads Q, K, V, O, LSE, dO and writes dQ, dK, dV.
///
/// Key c of batch entry b lies in page table[b, c / page], at row c % page. The pool may have any
/// number of pages, and batch entries may share them. Rows after an entry's last key and their
/// table entries are not read. A page outside the pool is an illegal address.
typedef struct {
  const void* Q;         ///< [B, H, N, d]
  const void* K;         ///< [B, Hkv, Nk, d]; with pages [pages, Hkv, page, d]
  const void* V;         ///< as K; not read where K holds it (a latent cache): null
  void* O;               ///< [B, H, N, d]; of a latent cache [B, H, N, 512]
  float* LSE;            ///< [B, H, N], natural logarithm; null where the variant writes none
  const void* dO;        ///< [B, H, N, d]
  void* dQ;              ///< [B, H, N, d]
  void* dK;              ///< [B, Hkv, Nk, d]
  void* dV;              ///< [B, Hkv, Nk, d]
  const int32_t* table;  ///< [B, ceil(Nk / page)]; null without pages
} FaTensors;

/// The step as JSON, valid while the library is loaded (docs/json.md). Needs no device.
FA_EXPORT const char* fa_describe(void);

/// The sentence of the last call that failed, "" before any; valid until the next call fails.
FA_EXPORT const char* fa_last_error(void);

/// Returns 2 when the step, or later the variant, does not support the problem. Needs no device.
FA_EXPORT int fa_check(const FaProblem* problem);

/// Bytes of workspace for all passes of a variant (its index in fa_describe()'s list).
FA_EXPORT int fa_workspace_bytes(int variant, const FaProblem* problem, size_t* bytes);

/// As fa_forward(), for a variant that has a prepare: its results from Q, K and V stay in the
/// workspace, where the forward reads them. An application does this work where it produces these
/// tensors, so it is a separate call, and peers.py does not time it.
FA_EXPORT int fa_prepare(int variant, const FaProblem* problem, const FaTensors* tensors,
                         void* stream);

/// Queues the kernels of the variant's forward and returns (in the simulator: runs them).
///
/// All work goes to `stream`, a cudaStream_t; null: the legacy default. The simulator ignores it.
///
/// The first run of a variant, and one that needs more workspace than earlier runs, allocates it,
/// which waits for the GPU. The workspace is kept for later runs on any stream: the caller must
/// order two streams that run one variant.
///
/// A variant with a prepare needs one for the same problem and the same Q, K and V, else status 2.
/// It must run again after new values are written to them.
///
/// `lengths` are read before the call returns, and copied to the device in stream order if they
/// differ from those of the variant's last run.
///
/// A stream may be captured into a CUDA graph once the variant has run with this problem outside of
/// the capture (status 2 before that: nothing can be allocated or copied during a capture). The
/// graph holds the addresses of tensors and workspace: do not replay it after a run with more
/// workspace, other lengths or another mask, or after fa_release().
FA_EXPORT int fa_forward(int variant, const FaProblem* problem, const FaTensors* tensors,
                         void* stream);

/// As fa_forward(). O and LSE may be of any forward that writes both. Without LSE a variant finds P
/// in its workspace, from its last forward, of the same problem and tensors; else status 2.
FA_EXPORT int fa_backward(int variant, const FaProblem* problem, const FaTensors* tensors,
                          void* stream);

/// Waits for the GPU and frees the workspace of all variants.
FA_EXPORT int fa_release(void);

/// Device memory, the only memory that simulated kernels may access. `*p` is null after a failure.
FA_EXPORT int fa_malloc(void** p, size_t bytes);
/// Frees what fa_malloc() gave; null is allowed.
FA_EXPORT int fa_free(void* p);
/// Copies host memory to the device after all work queued so far on any stream; waits.
FA_EXPORT int fa_upload(void* to, const void* from, size_t bytes);
/// Copies device memory to the host after all work queued so far on any stream; waits.
FA_EXPORT int fa_download(void* to, const void* from, size_t bytes);

#ifdef __cplusplus
}
#endif

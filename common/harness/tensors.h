/// \file
/// The tensors of a problem, each described once: name, readers and writers, shape, type, and the
/// members that hold it on the host and on the device. Those that only steps 13 and 15 have are
/// members of the base classes, which extras.h defines.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/harness/extras.h"
#include "common/harness/problem.h"

namespace fa {

struct Layout;  // counts/trace.h

/// The piece of a workspace with this name.
void* scratch_of(const std::map<std::string, void*>& workspace, const char* name);

/// Device pointers of one problem; T is the element type. Shapes: all_tensors().
template <class T>
struct Tensors : ExtraTensors {
  const T* Q = nullptr;
  const T* K = nullptr;
  const T* V = nullptr;
  T* O = nullptr;
  float* LSE = nullptr;
  const T* dO = nullptr;
  T* dQ = nullptr;
  T* dK = nullptr;
  T* dV = nullptr;
  const std::map<std::string, void*>* workspace = nullptr;

  /// A piece of the step's workspace by name.
  template <class U>
  U* scratch(const char* name) const {
    return static_cast<U*>(scratch_of(*workspace, name));
  }
};

/// The same with a given element type.
template <class T>
Tensors<T> typed(const Tensors<void>& t) {
  return {static_cast<const ExtraTensors&>(t),
          static_cast<const T*>(t.Q),
          static_cast<const T*>(t.K),
          static_cast<const T*>(t.V),
          static_cast<T*>(t.O),
          t.LSE,
          static_cast<const T*>(t.dO),
          static_cast<T*>(t.dQ),
          static_cast<T*>(t.dK),
          static_cast<T*>(t.dV),
          t.workspace};
}

/// Host tensors, rounded to the problem's element type.
struct Inputs : ExtraInputs {
  std::vector<float> Q, K, V, dO;
  std::string note;  ///< "real input tiled from N=1024 to N=4096", or empty
};

/// Results from the device. LSE, and gradients, are empty when the variant does not write them.
struct Outputs : ExtraOutputs {
  std::vector<float> O, LSE, dQ, dK, dV;
  std::vector<std::string> damage;  ///< "the guard band after O was overwritten", one sentence each
};

/// Files of inputs, by the options that name them; an empty path means "not given".
struct InputFiles {
  std::string q, k, v, dO;
  bool any() const { return !q.empty() || !k.empty() || !v.empty() || !dO.empty(); }
  /// Do the files replace all of Q, K and V?
  bool all() const { return !q.empty() && !k.empty() && !v.empty(); }
};

/// Which pass reads or writes a tensor. The backward also reads what the forward reads and writes.
enum class Role { input, output, backward_input, backward_output };

/// "input", "output", "backward input" or "backward output".
const char* name_of(Role);

/// One number of a shape.
struct Axis {
  const char* name;  ///< "Hkv"
  int (*of)(const Problem&);
  const char* latent = name;  ///< its name with CacheFormat::latent
};

struct Variant;

/// One tensor.
struct Tensor {
  const char* name;  ///< "dK"
  Role role;
  std::vector<Axis> axes;  ///< B, Hkv, Nk, d
  /// On the device: a member of Tensors.
  struct Member {
    void (*put)(Tensors<void>&, void*);
    const void* (*get)(const Tensors<void>&);
  } device;
  const char* type = nullptr;  ///< "fp32" or "int32"; null: the problem's
  bool (*there)(const Variant&, const Problem&) = nullptr;  ///< null: always
  /// On the host; null where absent.
  std::vector<float> Inputs::*input = nullptr;
  std::string InputFiles::*file = nullptr;
  std::vector<float> Outputs::*output = nullptr;

  bool of_keys() const;                                            ///< K, V and their gradients
  bool is_kv() const { return of_keys() && role == Role::input; }  ///< K and V
  std::vector<size_t> shape(const Problem&) const;
  size_t elements(const Problem&) const;
  /// [B, H, N] as B * H matrices of N rows and one column.
  Layout layout(const Problem&) const;
  size_t bytes(const Problem&) const;
  std::string shape_text(const Problem&) const;  ///< "[B, Hkv, Nk, d]"
};

/// All tensors, in the order in which a Session allocates them.
const std::vector<Tensor>& all_tensors();
/// \throws std::out_of_range when there is none of this name.
const Tensor& tensor_of(std::string_view name);
/// The tensors that a variant reads or writes for this problem.
std::vector<const Tensor*> tensors_of(const Variant&, const Problem&);

}  // namespace fa

#include "common/harness/step.h"

#include <cctype>
#include <stdexcept>

#include "common/harness/linked_step.h"

namespace fa {

namespace {

std::vector<Step>& all_linked() {
  static std::vector<Step> steps;  // filled by static objects of the main.cu files
  return steps;
}

template <class T>
std::function<void(const Problem&, const Tensors<void>&)> untyped(void (*f)(const Problem&,
                                                                            const Tensors<T>&)) {
  return [f](const Problem& p, const Tensors<void>& t) { f(p, typed<T>(t)); };
}

}  // namespace

Runner::Runner(void (*f)(const Problem&, const Tensors<float>&))
    : dtype_(DType::f32), run_(untyped(f)) {}
Runner::Runner(void (*f)(const Problem&, const Tensors<bf16>&))
    : dtype_(DType::bf16), run_(untyped(f)) {}

void* scratch_of(const std::map<std::string, void*>& workspace, const char* name) {
  return workspace.at(name);
}

const Support& support_of(const Step& step, const Variant& v) {
  return v.support ? *v.support : step.support;
}

const std::string& needs_of(const Step& step, const Variant& v) {
  return v.newer && !step.newer.empty() ? step.newer : step.needs;
}

std::string id_of(const Step& step, const Variant& v) {
  const bool numbered = step.id.size() > 2 && std::isdigit(step.id[0]) && step.id[2] == '_';
  return (numbered ? step.id.substr(0, 2) : step.id) + " " + v.name;
}

Parent parent_of(const Step& step, const std::string& id) {
  for (const Parent& parent : step.parents) {
    if (parent.id == id) return parent;
  }
  for (const Variant& v : step.variants) {
    if (id_of(step, v) == id) {
      return {id, v.traffic, v.backward_traffic, support_of(step, v), v.extras};
    }
    // A forward that v takes over supports all that this step does.
    if (v.forward_of == id) return {id, v.traffic, nullptr, step.support, v.extras};
  }
  throw std::out_of_range(step.id + " has no parent '" + id + "'");
}

void validate(const Problem& p, const Step& step, const Variant& v) {
  validate(p, step.support);
  if (!v.support) return;
  try {
    validate(p, *v.support, "variant " + v.name);
  } catch (const UsageError& e) {
    std::string others;
    for (const Variant& other : step.variants) {
      try {
        validate(p, support_of(step, other));
        others += (others.empty() ? "; accepted by " : ", ") + other.name;
      } catch (const UsageError&) {
      }
    }
    throw UsageError(e.what() + others);
  }
}

Gpu this_gpu() {
  try {
    return {multiprocessors(), shared_memory_per_block()};
  } catch (const CudaError&) {  // open_device() reports it
    return {};
  }
}

Problem problem_for(const Variant& v, Problem p) {
  p.gpu = this_gpu();
  p.dtype = v.forward.dtype();
  p.method.fp8 = v.fp8;
  p.cache.fp8 = v.extras.cache8;
  p.cache.latent = v.extras.latent;
  return p;
}

std::vector<Scratch> workspace_of(const Variant& v, const Problem& p) {
  return v.workspace ? v.workspace(p) : std::vector<Scratch>{};
}

std::vector<Table> tables_of(const Variant& v, const Problem& p) {
  return v.extras.tables ? v.extras.tables(p) : std::vector<Table>{};
}

LinkedStep::LinkedStep(Step step, const std::string& needs) {
  const size_t comma = needs.find(',');
  step.needs = needs.substr(comma == needs.npos ? 0 : comma + 1);
  if (comma != needs.npos) step.newer = needs.substr(0, comma);
  all_linked().push_back(std::move(step));
}

const std::vector<Step>& linked_steps() { return all_linked(); }

const Variant& linked_variant(std::string_view id) {
  for (const Step& step : all_linked()) {
    for (const Variant& v : step.variants) {
      if (id_of(step, v) == id) return v;
    }
  }
  throw std::out_of_range("no variant '" + std::string(id) + "' is linked into this program");
}

}  // namespace fa

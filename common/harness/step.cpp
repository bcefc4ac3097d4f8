#include "common/harness/step.h"

#include <cctype>
#include <stdexcept>

namespace fa {

namespace {

std::vector<Step>& all_linked() {
  static std::vector<Step> steps;  // made by the first main.cu that the program starts with
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
  return v.needs.empty() ? step.needs : v.needs;
}

void validate(const Problem& p, const Step& step, const Variant& v) {
  validate(p, step.support);
  if (v.support) validate(p, *v.support, "variant " + v.name);
}

std::vector<Scratch> workspace_of(const Variant& v, const Problem& p) {
  return v.workspace ? v.workspace(p) : std::vector<Scratch>{};
}

LinkedStep::LinkedStep(const Step& step) { all_linked().push_back(step); }

const std::vector<Step>& linked_steps() { return all_linked(); }

const Variant& linked_variant(std::string_view id) {
  for (const Step& step : all_linked()) {
    const bool numbered = step.id.size() > 2 && std::isdigit(step.id[0]) && step.id[2] == '_';
    const std::string name = numbered ? step.id.substr(0, 2) : step.id;
    for (const Variant& v : step.variants) {
      if (name + " " + v.name == id) return v;
    }
  }
  throw std::out_of_range("no variant '" + std::string(id) + "' is linked into this program");
}

}  // namespace fa

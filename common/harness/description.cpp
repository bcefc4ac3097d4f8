// A step as JSON: --describe, and fa_describe() of its library.
#include <nlohmann/json.hpp>

#include "common/counts/backend.h"
#include "common/harness/step.h"

namespace fa {

namespace {

using nlohmann::json;

json or_null(const std::string& text) { return text.empty() ? json(nullptr) : json(text); }

json json_of(const Support& s) {
  return {{"d", s.d},
          {"gqa", s.gqa},
          {"cross", s.cross},
          {"smem", s.smem},
          {"n", s.most_n},
          {"lengths", s.lengths},
          {"pages", s.pages},
          {"window", s.window},
          {"documents", s.documents},
          {"mask", s.predicate},
          {"score_mod", s.score_mod}};
}

/// A problem that a variant supports.
Problem problem_of(const Step& step, const Variant& v) {
  const Support& s = support_of(step, v);
  Problem p;
  p.d = s.d.front();
  if (s.most_n != 0) p.N = 1;
  return problem_for(v, p);
}

json buffers_of(PredictFn traffic, const Problem& p) {
  if (!traffic) return nullptr;
  json names = json::array();
  for (const auto& [name, bytes] : traffic(p).buffers) names.push_back(name);
  return names;
}

json tensors_json(const Variant& v, const Problem& p) {
  json all = json::array();
  for (const Tensor* t : tensors_of(v, p)) {
    const char* type =
        t->type ? t->type : name_of(t->is_kv() && p.cache.fp8 ? DType::e4m3 : p.dtype);
    all.push_back({{"name", t->name},
                   {"role", name_of(t->role)},
                   {"shape", t->shape_text(p)},
                   {"dtype", type}});
  }
  return all;
}

json json_of(const Step& step, const Variant& v) {
  const Problem p = problem_of(step, v);
  json workspace = json::array();
  for (const Scratch& piece : workspace_of(v, p)) workspace.push_back(piece.name);
  for (const Table& table : tables_of(v, p)) workspace.push_back(table.name);
  return {{"name", v.name},
          {"idea", v.idea},
          {"dtype", name_of(v.forward.dtype())},
          {"fp8", v.fp8},
          {"cache8", v.extras.cache8},
          {"needs", needs_of(step, v)},
          {"supports", json_of(support_of(step, v))},
          {"parent", or_null(v.parent.empty() ? v.forward_of : v.parent)},
          {"backward_parent", or_null(v.backward_parent)},
          {"forward_of", or_null(v.forward_of)},
          {"writes_lse", v.writes_lse},
          {"prepare", bool(v.prepare)},
          {"backward", bool(v.backward)},
          {"ranks", bool(v.extras.sharding)},
          {"tensors", tensors_json(v, p)},
          {"workspace", workspace},
          {"buffers",
           {{"prepare", buffers_of(v.prepare_traffic, p)},
            {"forward", buffers_of(v.traffic, p)},
            {"backward", buffers_of(v.backward_traffic, p)}}}};
}

}  // namespace

std::string describe(const Step& step) {
  json variants = json::array();
  for (const Variant& v : step.variants) variants.push_back(json_of(step, v));
  return json{{"step", step.id},
              {"idea", step.idea},
              {"kind", simulated() ? "sim" : "gpu"},
              {"needs", step.needs},
              {"supports", json_of(step.support)},
              {"variants", variants}}
      .dump();
}

}  // namespace fa

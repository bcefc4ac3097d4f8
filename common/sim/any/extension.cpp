// main() of a program that is a PyTorch extension: calls its functions for another program.
//
// `program IN OUT`, two file descriptors, begins with a line {"functions": [{"name", "symbol",
// "parameters": [{"kind", "name", "default"}]}]}. A request is {"call": index, "arguments": [...]},
// with "anew" where it alone is to be counted. An argument is a JSON value, or {"sizes", "type",
// "name", "cuda"} and after the line its bytes, none of which are written yet with "unwritten".
// The answer is {"refused": sentence}, or {"results": [...]}, of which a tensor is {"sizes",
// "type", "buffer"}, with their bytes, then those of the tensors among the arguments. It always has
// the "report" of docs/json.md, "to_host" and "from_host". None follows one with "ended".
#define FA_ANY_PROGRAM
#include "common/sim/any/include/torch_extension.h"

#include <cstdio>

#include "common/counts/channel.h"
#include "common/sim/any/session.h"
#include "common/sim/memory/memory.h"
#include "common/sim/messages/symbols.h"

namespace sim::any {

namespace {

using nlohmann::json;
using torch::Value;
using Bytes = std::vector<char>;

json described(const Value& v) {
  if (auto* b = std::get_if<bool>(&v)) return *b;
  if (auto* i = std::get_if<int64_t>(&v)) return *i;
  if (auto* d = std::get_if<double>(&v)) return *d;
  if (auto* s = std::get_if<std::string>(&v)) return *s;
  if (auto* t = std::get_if<at::Tensor>(&v); t && t->defined()) {
    const uint64_t at = reinterpret_cast<uintptr_t>(t->data_ptr()) - kHbmBase;
    const bool there = t->is_cuda() && at < kHbmSpan;
    return {{"sizes", t->sizes().vec()},
            {"type", c10::text_of(t->scalar_type())},
            {"buffer", there ? buffers[page_owner[at / kPage]].name : ""}};
  }
  return nullptr;
}

json described(const std::vector<torch::Function>& all) {
  json list = json::array();
  for (const torch::Function& f : all) {
    json parameters = json::array();
    for (const torch::Parameter& p : f.parameters) {
      parameters.push_back({{"kind", p.kind}, {"name", p.name}});
      if (p.fallback) parameters.back()["default"] = described(*p.fallback);
    }
    const std::string symbol = f.address ? kernel_name({f.address, {}, nullptr, nullptr, 0}) : "";
    list.push_back({{"name", f.name}, {"symbol", symbol}, {"parameters", parameters}});
  }
  return list;
}

/// A tensor's bytes in row-major order, straight from the device's memory: not counted.
Bytes bytes_of(const at::Tensor& t) {
  const size_t each = t.element_size();
  Bytes bytes(t.numel() * each);
  std::vector<int64_t> at(t.dim());
  for (size_t i = 0; i < bytes.size(); i += each) {
    int64_t offset = 0;
    for (int64_t axis = 0; axis < t.dim(); ++axis) offset += at[axis] * t.stride(axis);
    std::memcpy(&bytes[i], static_cast<const char*>(t.data_ptr()) + offset * each, each);
    for (int64_t axis = t.dim() - 1; axis >= 0 && ++at[axis] == t.size(axis); --axis) at[axis] = 0;
  }
  return bytes;
}

/// The tensors of the last call, which a call with the same sizes gets again, with other values.
std::vector<at::Tensor>& kept() {
  static auto& all = *new std::vector<at::Tensor>;
  return all;
}

Value argument(fa::Channel& caller, const json& j, size_t number) {
  if (j.is_boolean()) return j.get<bool>();
  if (j.is_number_integer()) return j.get<int64_t>();
  if (j.is_number()) return j.get<double>();
  if (j.is_string()) return j.get<std::string>();
  if (j.is_array()) return j.get<std::vector<int64_t>>();
  if (!j.is_object()) return {};
  const std::vector<int64_t> sizes = j.at("sizes");
  const at::ScalarType type = c10::type_named(j.at("type"));
  if (kept().size() <= number) kept().resize(number + 1);
  at::Tensor& t = kept()[number];
  const bool cuda = j.at("cuda");
  if (!t.defined() || t.sizes() != at::IntArrayRef(sizes) || t.scalar_type() != type ||
      t.is_cuda() != cuda) {
    t = at::Tensor(sizes, type, cuda);
  }
  t.name(j.at("name"));
  if (j.contains("unwritten")) {
    cuda ? sim::poison(t.data_ptr(), t.nbytes()) : (void)std::memset(t.data_ptr(), 255, t.nbytes());
  } else {
    const Bytes bytes = caller.numbers<char>(t.nbytes());
    cudaMemcpy(t.data_ptr(), bytes.data(), bytes.size(), cudaMemcpyDefault);
  }
  return t;
}

json report() {
  const Session& s = session();
  return {
      {"report", json::parse(json_text(s))}, {"to_host", s.to_host}, {"from_host", s.from_host}};
}

void answer(fa::Channel& caller, const json& asked) {
  const torch::Function& f = torch::functions().at(asked.at("call"));
  std::vector<Value> arguments;
  for (const json& j : asked.at("arguments")) {
    arguments.push_back(argument(caller, j, arguments.size()));
  }
  if (asked.value("anew", false)) begin_anew();
  json said;
  std::vector<Value> results;
  try {
    results = f.call(arguments);
    cudaDeviceSynchronize();
  } catch (const std::exception& e) {
    said["refused"] = e.what();
  }
  cudaGetLastError();
  take_counts(nullptr);
  said.update(report());
  std::vector<Bytes> bytes;
  if (!said.contains("refused")) {
    said["results"] = json::array();
    for (const Value& v : results) {
      said["results"].push_back(described(v));
      if (auto* t = std::get_if<at::Tensor>(&v); t && t->defined()) bytes.push_back(bytes_of(*t));
    }
    for (const Value& v : arguments) {
      if (auto* t = std::get_if<at::Tensor>(&v); t && t->defined()) bytes.push_back(bytes_of(*t));
    }
  }
  std::vector<const Bytes*> all;
  for (const Bytes& b : bytes) all.push_back(&b);
  caller.put(said, all);
}

}  // namespace

}  // namespace sim::any

int main(int argc, char** argv) try {
  using namespace sim::any;
  if (argc != 3)
    throw fa::UsageError("./scripts/judge and flash_steps.simulate start this program");
  fa::Channel caller(argv[1], argv[2]);
  Session& s = session();
  s.wishes.quiet = true;
  s.on_end = [&caller] {
    json said = report();
    said["ended"] = true;
    caller.put(said);
  };
  caller.put({{"functions", described(sim::torch::functions())}});
  for (json asked = caller.get(); !asked.is_null(); asked = caller.get()) answer(caller, asked);
  s.on_end = nullptr;
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "sim: %s\n", e.what());
  return 2;
}

#include "common/counts/json.h"

namespace fa {

using Json = nlohmann::ordered_json;

Json to_json(const Bytes& b) {
  return {{"read", b.read}, {"write", b.write}, {"atomic", b.atomic}};
}
Json to_json(const Ops& o) { return {{"load", o.load}, {"store", o.store}, {"atomic", o.atomic}}; }
Json to_json(const SiteCount& s) {
  return {{"where", s.where},
          {"what", s.what},
          {"requests", s.requests},
          {"transfers", s.transfers},
          {"ideal", s.ideal}};
}

}  // namespace fa

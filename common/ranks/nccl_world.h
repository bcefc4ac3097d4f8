/// \file
/// World where NCCL moves messages. Its kernels copy, so they take SMs.
#pragma once

#include <nccl.h>

#include "common/ranks/gpu_world.h"

namespace fa {

class NcclWorld : public GpuWorld {
 public:
  using GpuWorld::GpuWorld;
  ~NcclWorld() override;

  std::string open_own() override;
  void meet(const std::vector<std::string>& all) override;
  std::string carrier() const override;
  int busy_sms() const override;

 protected:
  void queue(const std::vector<Message>& send, const std::vector<Message>& receive) override;
  void look() override;

 private:
  void await(const std::string& what) const;

  ncclComm_t comm_ = nullptr;
};

}  // namespace fa

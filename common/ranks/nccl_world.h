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

  void open_device() override;
  std::string carrier() const override;
  int busy_sms() const override;

 protected:
  void queue(const std::vector<Message>& send, const std::vector<Message>& receive) override;
  void look() override;

 private:
  ncclComm_t comm_ = nullptr;
};

}  // namespace fa

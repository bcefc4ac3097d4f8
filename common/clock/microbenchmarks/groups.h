/// \file
/// The groups of the microbenchmarks: what is measured, in which file.
#pragma once

namespace fa::microbenchmarks {

void measure_clock();    ///< clock.cu: clock of the SMs, one busy and all busy
void measure_l1();       ///< l1.cu: loads that hit in L1 and global stores, by lanes' addresses
void measure_shared();   ///< shared.cu: shared loads and stores, by the lanes' addresses
void measure_pipes();    ///< pipes.cu: rate and latency of arithmetic instructions
void measure_mma();      ///< mma.cu: rate and latency of mma m16n8k16
void measure_wgmma();    ///< sm_90a_wgmma.cu: rate and latency of wgmma
void measure_latency();  ///< latency.cu: of loads from each level, cp.async, __syncthreads
void measure_atomics();  ///< atomics.cu: rate of fp32 additions in the L2
void measure_l2();       ///< l2.cu: bandwidth of the L2
void measure_tma();      ///< sm_90a_tma.cu: bandwidth and latency of TMA loads from the L2
void measure_hbm();      ///< hbm.cu: bandwidth of the device memory
void measure_launch();   ///< launch.cu: what a launch costs, and each block of it

}  // namespace fa::microbenchmarks

/// \file
/// The sizes of a line of the L2 and of its sectors. Private to observers/.
#pragma once

namespace sim {

/// Bytes of a line of the L2, and of a sector, the least that a request moves.
constexpr unsigned kLine = 128, kSector = 32;
constexpr unsigned kLineSectors = kLine / kSector;
/// A bit for each sector of a line.
constexpr unsigned kAllSectors = (1u << kLineSectors) - 1;

}  // namespace sim

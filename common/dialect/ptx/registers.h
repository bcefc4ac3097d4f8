/// \file
/// Long register lists for asm statements, in steps of 16: "%0,%1,..." in the text (FA_REGS_n) and
/// "=f"(r[0]), "=f"(r[1]), ... as operands (FA_OPERANDS_n).
#pragma once

// clang-format off
#define FA_REGS_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define FA_REGS_32 FA_REGS_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define FA_REGS_48 FA_REGS_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define FA_REGS_64 FA_REGS_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define FA_REGS_80 FA_REGS_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define FA_REGS_96 FA_REGS_80 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define FA_REGS_112 FA_REGS_96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define FA_REGS_128 FA_REGS_112 ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define FA_OPERANDS(c, r, i)                                                         \
  c(r[i]), c(r[i + 1]), c(r[i + 2]), c(r[i + 3]), c(r[i + 4]), c(r[i + 5]),          \
  c(r[i + 6]), c(r[i + 7]), c(r[i + 8]), c(r[i + 9]), c(r[i + 10]), c(r[i + 11]),    \
  c(r[i + 12]), c(r[i + 13]), c(r[i + 14]), c(r[i + 15])
#define FA_OPERANDS_16(c, r) FA_OPERANDS(c, r, 0)
#define FA_OPERANDS_32(c, r) FA_OPERANDS_16(c, r), FA_OPERANDS(c, r, 16)
#define FA_OPERANDS_48(c, r) FA_OPERANDS_32(c, r), FA_OPERANDS(c, r, 32)
#define FA_OPERANDS_64(c, r) FA_OPERANDS_48(c, r), FA_OPERANDS(c, r, 48)
#define FA_OPERANDS_80(c, r) FA_OPERANDS_64(c, r), FA_OPERANDS(c, r, 64)
#define FA_OPERANDS_96(c, r) FA_OPERANDS_80(c, r), FA_OPERANDS(c, r, 80)
#define FA_OPERANDS_112(c, r) FA_OPERANDS_96(c, r), FA_OPERANDS(c, r, 96)
#define FA_OPERANDS_128(c, r) FA_OPERANDS_112(c, r), FA_OPERANDS(c, r, 112)
// clang-format on

"""./scripts/sim: between host and device. One program, whose first argument says what it does."""

import json
import os
import re
import shutil
import tempfile
import unittest

from copies import main, said
from test_sim import sim

PROGRAM = r"""
#include <cstdio>
#include <cstring>

__global__ void child(int* x) { x[threadIdx.x] = 1; }
__global__ void parent(int* x) {
  if (threadIdx.x == 3) child<<<1, 4>>>(x);  // launches
}
__device__ int* take(int bytes) {
  int* p;
  cudaMalloc(&p, bytes);  // allocates
  return p;
}
__global__ void allocates(int** x) { *x = take(4); }
__global__ void waits() {
  cudaDeviceSynchronize();  // waits
}

// A class as of a course: it owns device memory.
struct Vector {
  static inline int made = 0, gone = 0;
  int *p, n, copies = 0, rest[40];
  static const int kThree = 3;
  explicit Vector(int n) : n(n) { cudaMalloc(&p, n * sizeof(int)), ++made; }
  Vector(const Vector& v) : n(v.n), copies(v.copies + 1) {
    cudaMalloc(&p, n * sizeof(int)), ++made;
    cudaMemcpy(p, v.p, n * sizeof(int), cudaMemcpyDeviceToDevice);
    memcpy(rest, v.rest, sizeof rest);
  }
  ~Vector() { cudaFree(p), ++gone; }
};
template <class V>
__global__ void add(V v, int by, int* out) {
  out[threadIdx.x] = v.p[threadIdx.x] + v.rest[39] + by;
  v.p = nullptr;  // each thread's own
  v.copies += threadIdx.x;
  __syncthreads();
  if (threadIdx.x == 31) out[32] = v.copies;
}
int arguments() {
  int *out, *same, got[33];
  cudaMalloc(&out, sizeof got);
  Vector v(32);
  cudaMemset(v.p, 0, 32 * sizeof(int));
  v.rest[39] = 4;
  add<<<1, 32>>>(v, Vector::kThree, out);
  cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost);
  printf("%d %d, made %d, gone %d\n", got[5], got[32], Vector::made, Vector::gone);
  int by = 1;
  void* all[] = {&v, &by, &out};
  cudaLaunchKernel((void*)add<Vector>, dim3(1), dim3(32), all, 0, 0);
  cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost);
  printf("%d %d, made %d, gone %d\n", got[5], got[32], Vector::made, Vector::gone);
  return 0;
}

__global__ void tree(int* out) {
  __shared__ int s[64];
  s[threadIdx.x] = 1;
  for (int n = 32; n > 0; n /= 2) {
    if (threadIdx.x < n) s[threadIdx.x] += s[threadIdx.x + n];  // races
  }
  out[threadIdx.x] = s[threadIdx.x];
}
__global__ void reverse(int* x) { x[63 - threadIdx.x] = x[threadIdx.x]; }
__global__ void some(int* out) {  // 24 are written, 32 are read
  __shared__ int s[32];
  const int v = s[31 - threadIdx.x];  // never
  if (threadIdx.x < 24) s[threadIdx.x] = 1;
  out[threadIdx.x] = v;
}

struct Pair {
  double sum;
  int count;
};
__global__ void fill(int* out, int n) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) out[i] = i;
}
__global__ void pairs(Pair* out) { out[threadIdx.x].sum = 1, out[threadIdx.x].count = 2; }
int copies(bool reads) {
  int *most, *room, got[1000], sum = 0;
  Pair *p, back[32];
  cudaMalloc(&most, 4000), cudaMalloc(&room, 4000), cudaMalloc(&p, sizeof back);
  fill<<<3, 256>>>(most, 1000);
  fill<<<1, 256>>>(room, 7);
  pairs<<<1, 32>>>(p);
  cudaMemcpy(back, p, sizeof back, cudaMemcpyDeviceToHost);
  for (const Pair& q : back) sum += q.count;
  cudaMemcpy(got, room, 4000, cudaMemcpyDeviceToHost);
  for (int i = 0; i < 7; ++i) sum += got[i];
  got[7] = -1;
  sum += got[7];
  cudaMemcpyAsync(got, most, 4000, cudaMemcpyDeviceToHost);  // copies
  for (int i = 0; i < (reads ? 1000 : 768); ++i) sum += got[i];  // reads
  printf("%d\n", sum);
  return 0;
}
int copies_all() {
  int *nothing, *other, got[10];
  cudaMalloc(&nothing, 4000), cudaMalloc(&other, 4000);
  cudaMemcpy(other, nothing, 4000, cudaMemcpyDeviceToDevice);
  cudaMemcpy2D(got, 4, other, 40, 4, 10, cudaMemcpyDeviceToHost);  // all
  return 0;
}

__global__ void stores_on(volatile int* p, int n) {
  for (int i = 0; i < n; ++i) *p = i;
}
__global__ void computes_on(int x, int* out) {
  while (x != 7) x = x * 2 | 1;  // computes
  *out = x;
}

int main(int n, char** words) {
  const auto is = [&](const char* word) { return n > 1 && !strcmp(words[1], word); };
  int *x, **y;
  cudaMalloc(&x, 256), cudaMalloc(&y, 8);
  if (is("launches")) parent<<<1, 4>>>(x);
  if (is("allocates")) allocates<<<1, 1>>>(y);
  if (is("waits")) waits<<<1, 32>>>();
  if (is("arguments")) return arguments();
  if (is("races") || is("far")) tree<<<1, 64>>>(x);
  if (is("far")) fill<<<1, 64>>>(x, 64), stores_on<<<1, 1>>>(x, 1);
  if (is("reverse")) reverse<<<1, 64>>>(x);
  if (is("never")) some<<<1, 32>>>(x);
  if (is("copies")) return copies(false);
  if (is("reads")) return copies(true);
  if (is("all")) return copies_all();
  if (is("stores on")) stores_on<<<1, 1>>>(x, 1000000), stores_on<<<1, 1>>>(x, 10);
  if (is("computes on")) stores_on<<<1, 1>>>(x, 1), computes_on<<<1, 1>>>(1024, x);
  return cudaDeviceSynchronize();
}
"""


def line(mark):
    lines = PROGRAM.splitlines()
    return next(n for n, x in enumerate(lines, 1) if x.endswith("// " + mark))


class Host(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.source = os.path.join(cls.folder.name, "host side.cu")
        cls.program = os.path.join(cls.folder.name, "program")
        with open(cls.source, "w", encoding="utf-8") as file:
            file.write(PROGRAM)
        kept = sim(cls.source, "-o", cls.program)
        if kept.returncode:
            raise RuntimeError(kept.stderr)

    def run_as(self, mode, *wishes, words=(), folder=None):
        wishes = {"FLASH_STEPS_SIM": "\n".join(wishes)}
        command = [*words, self.program, mode]
        return said(command, timeout=120, cwd=folder, env={**os.environ, **wishes})

    def findings(self, mode, *wishes):
        done = self.run_as(mode, "analyse", *wishes)
        return done, re.findall("^finding: (.*(?:\n  .*)*)", done.stderr, re.MULTILINE)

    def test_a_kernel_that_needs_the_host_is_refused_by_name_and_line(self):
        for mode, does in (
            ("launches", "launches child"),
            ("allocates", "calls cudaMalloc"),
            ("waits", "calls cudaDeviceSynchronize"),
        ):
            done = self.run_as(mode)
            place = f"host side.cu:{line(mode)}"
            self.assertEqual(done.stderr, f"sim: not supported: a kernel that {does} ({place})\n")
            self.assertEqual(done.returncode, 2)

    def test_the_host_copies_the_arguments_once(self):
        done = self.run_as("arguments")
        self.assertEqual(done.returncode, 0, done.stderr)
        # cudaLaunchKernel: no constructor at all
        self.assertEqual(done.stdout, "7 32, made 2, gone 1\n5 31, made 2, gone 1\n")

    def test_reads_that_a_race_explains_are_no_findings_of_their_own(self):
        for mode in ("races", "reverse"):
            _, findings = self.findings(mode)
            self.assertTrue(findings)
            for finding in findings:
                self.assertTrue(finding.startswith("race on "), finding)
        _, findings = self.findings("never")
        self.assertEqual(len(findings), 2, findings)  # the last 8 are nobody's
        self.assertTrue(findings[0].startswith("uninitialised shared memory"), findings)

    def test_what_nobody_has_written_and_the_host_uses(self):
        done, findings = self.findings("copies")
        self.assertEqual((done.returncode, findings), (0, []), done.stderr)
        done, findings = self.findings("reads")
        told = re.sub(r"\s+", " ", findings[0])
        self.assertRegex(
            told, rf"host code at host side.cu:{line('reads')} reads byte 3072 of most"
        )
        self.assertIn(f"copied at host side.cu:{line('copies')}, which nobody has written", told)
        self.assertEqual((done.returncode, len(findings)), (1, 1))
        done, findings = self.findings("all")
        told = re.sub(r"\s+", " ", findings[0])
        self.assertIn(f"the host copies 40 bytes of other at host side.cu:{line('all')}", told)
        self.assertEqual((done.returncode, len(findings)), (1, 1))

    def test_a_program_that_was_ended_has_no_clean_bill(self):
        report = os.path.join(self.folder.name, "report.json")
        for mode, limit in (("stores on", "limit 0.01"), ("computes on", "limit 0.5")):
            wishes = (limit, "patience 0", "analyse", "watchdog 2", "json " + report)
            done = self.run_as(mode, *wishes)
            self.assertEqual(done.returncode, 124, done.stderr)
            self.assertIn(
                "no race and no other finding until it was ended: the rest did not run\n",
                done.stderr,
            )
            self.assertNotIn("spins", done.stderr)
            with open(report, encoding="utf-8") as file:
                self.assertFalse(json.load(file)["complete"])
        self.assertIn(f"computes_on was ended at host side.cu:{line('computes')}\n", done.stderr)

    def test_without_the_search_for_races_it_says_so(self):
        done = self.run_as("races", "looks ./scripts/sim --analyse x.cu")
        self.assertEqual(done.returncode, 0)
        last = "races were not looked for: ./scripts/sim --analyse x.cu"
        self.assertEqual(done.stderr.splitlines()[-1], last)
        done = self.run_as("races", "analyse")
        self.assertRegex(done.stderr, "\\d findings?, told above\nraces were looked for\n$")

    def test_far_below_a_finding_it_is_told_again(self):
        done, (finding, *_) = self.findings("far", "lines")
        report = done.stderr.split("\n\n")[1]
        self.assertRegex(report, r"\d findings?:\n(  .*\n)+races were looked for\n$")
        again = " ".join(report.rpartition("findings:\n")[2].split())
        self.assertIn(" ".join(finding.split()), again)

    def test_the_command_that_looks_for_races(self):
        done = sim(self.source, "--gpu", "H100", "--", "races")
        self.assertRegex(
            done.stderr, rf"looked for: \S+/sim --analyse '{self.source}' --gpu H100 -- races\n$"
        )

    @unittest.skipUnless(shutil.which("unshare"), "there is no unshare")
    def test_without_proc_lines_are_known(self):
        hide = "mount -t tmpfs none /proc && cd / && exec "
        words = ["unshare", "-rm", "sh", "-c", hide + '"$0" "$@"']
        if said([*words, "true"]).returncode:
            self.skipTest("no file system can be mounted here")
        done = self.run_as("races", "analyse", words=words)
        self.assertIn(f"at host side.cu:{line('races')}", re.sub(r"\s+", " ", done.stderr))
        nowhere = self.run_as("races", "analyse", words=["env", "PATH=/nowhere"])
        self.assertIn("addr2line", nowhere.stderr)


if __name__ == "__main__":
    main()

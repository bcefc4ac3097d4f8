// What the tests' precompiled header is compiled with (CMakeLists.txt).

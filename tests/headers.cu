// The precompiled header of the tests is built from this file (CMakeLists.txt).

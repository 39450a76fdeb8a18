# SPDX-License-Identifier: Apache-2.0
# What every target of ours has in common.
function(cdgrab_target_defaults target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion
                                           -Wnon-virtual-dtor -Woverloaded-virtual)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${target} PRIVATE -Wno-restrict)  # false alarm on std::string, GCC bug 105651
  endif()
  if(CMAKE_UNITY_BUILD)  # sources that know nothing of each other look like one there
    target_compile_options(${target} PRIVATE -Wno-shadow -Wno-subobject-linkage)
  endif()
  if(CDGRAB_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(CDGRAB_SANITIZE)
    target_compile_options(${target} PUBLIC -fsanitize=${CDGRAB_SANITIZE} -fno-omit-frame-pointer
                                            -fno-sanitize-recover=all)
    target_link_options(${target} PUBLIC -fsanitize=${CDGRAB_SANITIZE})
  endif()
endfunction()

# Sources that are compiled once per instruction set, by including themselves (Highway), so that no unity build can have
# them. With sanitizers that takes minutes: two sets are enough there.
function(cdgrab_per_instruction_set)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  if(CDGRAB_SANITIZE)
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_DEFINITIONS
      "HWY_DISABLED_TARGETS=(HWY_SVE|HWY_SVE2|HWY_SVE_256|HWY_SVE2_128|HWY_RVV|HWY_SSSE3|HWY_SSE4|HWY_AVX3|HWY_AVX3_DL)")
  endif()
endfunction()

# What only calls others, and loops over no numbers: optimising it takes as long as all else, and wins nothing.
function(cdgrab_glue target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

# The adapter's precompiled header: most of what it takes to compile a file that includes torch. It fits only what is
# compiled as the adapter's own sources are.
function(cdgrab_reuse_torch_header target)
  cdgrab_glue(${target})
  target_compile_definitions(${target} PRIVATE cdgrab_torch_EXPORTS)
  target_compile_options(${target} PRIVATE -fPIC)
  target_link_libraries(${target} PRIVATE fmt::fmt-header-only)
  target_precompile_headers(${target} REUSE_FROM cdgrab_torch)
endfunction()

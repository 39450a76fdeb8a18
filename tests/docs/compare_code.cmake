# SPDX-License-Identifier: Apache-2.0
# The first ```cpp block of a page is a file of the project, to the letter.
#   cmake -D PAGE=README.md -D CODE=examples/cpp/order_vectors.cpp -P compare_code.cmake
cmake_minimum_required(VERSION 3.25)
file(READ ${PAGE} page)
file(READ ${CODE} code)
string(FIND "${page}" "```cpp\n" begin)
if(begin LESS 0)
  message(FATAL_ERROR "${PAGE} has no \`\`\`cpp block")
endif()
math(EXPR begin "${begin} + 7")
string(SUBSTRING "${page}" ${begin} -1 rest)
string(FIND "${rest}" "```" end)
string(SUBSTRING "${rest}" 0 ${end} block)
if(NOT "${block}" STREQUAL "${code}")
  message(FATAL_ERROR "The program in ${PAGE} is not ${CODE}; copy the file into the page")
endif()

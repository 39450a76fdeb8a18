// SPDX-License-Identifier: Apache-2.0
// The four kinds of error (docs/errors.md). Every message reads
//   [where] what was wrong, the value, what is allowed, what to do.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace cdgrab {

/// Base of everything cdgrab throws on purpose.
class Error : public std::runtime_error {
 public:
  Error(std::string_view where, std::string_view what);
};

/// The caller asked for something that cannot be: a wrong argument, option or call order.
class UserError : public Error {
  using Error::Error;
};

/// A file is missing, damaged or not of the expected kind.
class FileError : public Error {
  using Error::Error;
};

/// A state is sound but belongs to something else: other n, d, spec or version.
class StateMismatch : public FileError {
  using FileError::FileError;
};

/// Another rank failed or went away.
class CommunicationError : public Error {
  using Error::Error;
};

/// cdgrab itself is wrong: please report it.
class InvariantError : public Error {
  using Error::Error;
};

}  // namespace cdgrab

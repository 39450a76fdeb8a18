// SPDX-License-Identifier: Apache-2.0
// What every geometry must do, checked verb by verb against vectors kept in the open. A new geometry
// is finished when an instance of this suite passes.
#include "cdgrab/geometry.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "cdgrab/composite_geometry.hpp"
#include "cdgrab/dense_geometry.hpp"
#include "cdgrab/error.hpp"
#include "cdgrab/state.hpp"
#include "conformance/geometry_makers.hpp"
#include "property/cases.hpp"

namespace cdgrab {
namespace {

using cases::Dice;
using suite::CompositeMaker;
using suite::DenseMaker;
using suite::GramMaker;
using suite::Maker;
using suite::Plain;

struct Kind {
  std::string name;
  std::shared_ptr<Maker> maker;
};

/// The same vectors, in the open.
struct Open {
  std::size_t dim;
  std::vector<Plain> rows;
  std::vector<Plain> registers;

  [[nodiscard]] Plain value(const Operand& operand) const {
    Plain x = operand.kind == Operand::Kind::kRow ? rows[operand.index] : registers[operand.index];
    for (double& entry : x) entry *= operand.scale;
    return x;
  }
  [[nodiscard]] Plain value(const Vector& v) const {
    Plain x = value(v.first);
    if (!v.has_second) return x;
    const Plain y = value(v.second);
    for (std::size_t i = 0; i < dim; ++i) x[i] -= y[i];
    return x;
  }
};

double dot(const Plain& x, const Plain& y) {
  double total = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) total += x[i] * y[i];
  return total;
}

class GeometryConformance : public testing::TestWithParam<Kind> {
 protected:
  static constexpr std::size_t kRegisters = 6;

  void check_registers(const Geometry& geometry, const Open& open) {
    State state;
    geometry.save(state);
    for (std::size_t r = 0; r < kRegisters; ++r) {
      Plain stored;
      for (const std::string prefix : {"", "a/", "b/"})
        append(state, prefix + "register." + std::to_string(r), stored);
      ASSERT_EQ(stored, open.registers[r]) << "register " << r;
    }
  }

  static void append(const State& state, const std::string& key, Plain& to) {
    if (!state.contains(key)) return;
    if (state.array(key).dtype == DType::kF32) {
      const auto values = state.elements<float>(key, state.array(key).shape[0]);
      to.insert(to.end(), values.begin(), values.end());
    } else {
      const auto values = state.elements<double>(key, state.array(key).shape[0]);
      to.insert(to.end(), values.begin(), values.end());
    }
  }

  static std::vector<std::string> names() {
    std::vector<std::string> all;
    for (std::size_t r = 0; r < kRegisters; ++r) all.push_back("register." + std::to_string(r));
    return all;
  }
};

Operand any_operand(Dice& dice, std::size_t rows, std::size_t registers) {
  const double scale = dice.roll(6) == 0 ? 2.0 : 1.0;
  return dice.roll(4) == 0 ? Operand::reg(dice.roll(registers), scale) : Operand::row(dice.roll(rows), scale);
}

/// Groups as balancers form them: differences, rows less a common register, bare rows; or anything.
std::vector<Vector> any_group(Dice& dice, std::size_t most, std::size_t rows, std::size_t registers) {
  std::vector<Vector> group(1 + dice.roll(most));
  const std::size_t kind = dice.roll(4);
  const Operand centre = Operand::reg(dice.roll(registers));
  for (Vector& v : group) {
    if (kind == 0) v = {Operand::row(dice.roll(rows)), Operand::row(dice.roll(rows)), true};
    if (kind == 1) v = {Operand::row(dice.roll(rows)), centre, true};
    if (kind == 2) v = {Operand::row(dice.roll(rows)), {}, false};
    if (kind == 3) v = {any_operand(dice, rows, registers), any_operand(dice, rows, registers), dice.flip()};
  }
  return group;
}

/// Random programs of verbs give the numbers and the registers of the plain vectors, whatever is put off.
TEST_P(GeometryConformance, RandomProgramsGiveThePlainNumbers) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    Dice dice(seed);
    const std::size_t dim = dice.roll(40) == 0 ? 1500 : dice.roll(70);
    const std::unique_ptr<Geometry> geometry = GetParam().maker->make(dim);
    geometry->declare(names());
    Open open{dim, {}, std::vector<Plain>(kRegisters, Plain(dim))};
    for (int block = 0; block < 3; ++block) {
      const std::size_t count = 1 + dice.roll(9);
      const std::vector<float> rows = cases::integer_rows(dice, count, dim);
      GetParam().maker->set_block(*geometry, rows, count);
      ASSERT_EQ(geometry->block_size(), count);
      open.rows.clear();
      for (std::size_t k = 0; k < count; ++k)
        open.rows.emplace_back(rows.begin() + static_cast<std::ptrdiff_t>(k * dim),
                               rows.begin() + static_cast<std::ptrdiff_t>((k + 1) * dim));
      for (int move = 0; move < 12; ++move) {
        if (dice.roll(5) == 0) {
          const Register target = dice.roll(kRegisters);
          const Operand operand = any_operand(dice, count, kRegisters);
          const double scale = static_cast<double>(dice.roll(3)) - 1.0;
          geometry->blend(target, scale, operand);
          const Plain x = open.value(operand);
          for (std::size_t i = 0; i < dim; ++i)
            open.registers[target][i] = scale * open.registers[target][i] + x[i];
          if (std::abs(dot(open.registers[target], open.registers[target])) > 1e4) {
            geometry->clear(target);
            open.registers[target].assign(dim, 0.0);
          }
          continue;
        }
        const auto group = any_group(dice, geometry->group_size(false, true), count, kRegisters);
        std::vector<Plain> values;
        for (const Vector& v : group) values.push_back(open.value(v));
        geometry->form(group);
        const Register common = dice.roll(kRegisters);
        const bool same = dice.flip();
        std::vector<Register> against;
        for (std::size_t k = 0; k < group.size(); ++k)
          against.push_back(same ? common : dice.roll(kRegisters));
        Products products;
        const Wanted wanted{dice.flip(), dice.flip()};
        geometry->products(against, wanted, products);
        for (std::size_t k = 0; k < group.size(); ++k) {
          ASSERT_EQ(products.inner[k], dot(values[k], open.registers[against[k]])) << seed;
          if (wanted.norms) {
            ASSERT_EQ(products.norms[k], dot(values[k], values[k])) << seed;
          }
          for (std::size_t j = 0; j < k && wanted.gram; ++j)
            ASSERT_EQ(products.gram[k * (k - 1) / 2 + j], dot(values[k], values[j])) << seed;
        }
        for (std::size_t c = dice.roll(3); c > 0; --c) {
          const Register target = dice.flip() ? common : dice.roll(kRegisters);
          // What a group is made of keeps its value until the group has been combined.
          const bool part_of_group = std::any_of(group.begin(), group.end(), [&](const Vector& v) {
            return v.first == Operand::reg(target, v.first.scale) ||
                   (v.has_second && v.second == Operand::reg(target, v.second.scale));
          });
          if (part_of_group) continue;
          std::vector<Weighted> weights;
          for (std::size_t k = 0; k < group.size(); ++k)
            if (dice.roll(4) != 0) weights.push_back({k, dice.flip() ? 1.0 : -1.0});
          geometry->combine(target, weights);
          for (const Weighted& w : weights)
            for (std::size_t i = 0; i < dim; ++i) open.registers[target][i] += w.weight * values[w.index][i];
        }
      }
      for (std::size_t k = 0; k < count; ++k) {
        ASSERT_EQ(geometry->norm2(k), dot(open.rows[k], open.rows[k]));
        ASSERT_TRUE(geometry->finite(k));
      }
      geometry->end_block();
      check_registers(*geometry, open);
    }
    State state;
    geometry->save(state);
    const std::unique_ptr<Geometry> other = GetParam().maker->make(dim);
    other->declare(names());
    other->load(state);
    check_registers(*other, open);
  }
}

TEST_P(GeometryConformance, ARowThatIsNotFiniteIsSeen) {
  const std::unique_ptr<Geometry> geometry = GetParam().maker->make(5);
  geometry->declare(names());
  std::vector<float> rows(10, 1.0F);
  rows[7] = std::numeric_limits<float>::quiet_NaN();
  GetParam().maker->set_block(*geometry, rows, 2);
  EXPECT_TRUE(geometry->finite(0));
  EXPECT_FALSE(geometry->finite(1));
  const Vector bad{Operand::row(1), Operand::row(0), true};
  geometry->form(std::span(&bad, 1));
  Products products;
  const Register against = 0;
  geometry->products(std::span(&against, 1), {}, products);
  EXPECT_FALSE(std::isfinite(products.inner[0]));
  // Not combined, so it must not reach a register through what comes next either.
  const Vector good{Operand::row(0), {}, false};
  geometry->form(std::span(&good, 1));
  geometry->products(std::span(&against, 1), {}, products);
  EXPECT_EQ(products.inner[0], 0.0);
  const Weighted one{0, 1.0};
  geometry->combine(0, std::span(&one, 1));
  geometry->end_block();
  Open open{5, {}, std::vector<Plain>(kRegisters, Plain(5))};
  open.registers[0].assign(5, 1.0);
  check_registers(*geometry, open);
}

TEST_P(GeometryConformance, AStateOfAnotherLengthIsRefusedAndChangesNothing) {
  const std::unique_ptr<Geometry> five = GetParam().maker->make(5);
  five->declare(names());
  const std::unique_ptr<Geometry> six = GetParam().maker->make(6);
  six->declare(names());
  State before;
  six->save(before);
  State state;
  five->save(state);
  EXPECT_THROW(six->load(state), StateMismatch);
  State after;
  six->save(after);
  EXPECT_EQ(before, after);
}

INSTANTIATE_TEST_SUITE_P(
    All, GeometryConformance,
    testing::Values(
        Kind{"Float", std::make_shared<DenseMaker<float>>(DenseGeometry<float>::Loops::kVectorised)},
        Kind{"FloatPlain", std::make_shared<DenseMaker<float>>(DenseGeometry<float>::Loops::kPlain)},
        Kind{"Double", std::make_shared<DenseMaker<double>>(DenseGeometry<double>::Loops::kVectorised)},
        Kind{"DoublePlain", std::make_shared<DenseMaker<double>>(DenseGeometry<double>::Loops::kPlain)},
        Kind{"Gram", std::make_shared<GramMaker>()}, Kind{"Composite", std::make_shared<CompositeMaker>()}),
    [](const testing::TestParamInfo<Kind>& kind) { return kind.param.name; });

}  // namespace
}  // namespace cdgrab

// What the areas' bindings share.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "op.h"

namespace nb = nanobind;

namespace pagewell {

// bind_op<T, Args...>(m, "Name"): an operator that Python builds from Args; addresses are uintptr_t.
template <typename T, typename... Args>
void bind_op(nb::module_& m, const char* name) {
    nb::class_<T, Op>(m, name).def(nb::init<Args...>());
}

// One for each area, defined beside its operators.
void bind_attention(nb::module_& m);
void bind_cache(nb::module_& m);
void bind_experts(nb::module_& m);
void bind_heads(nb::module_& m);
void bind_limits(nb::module_& m);
void bind_linear(nb::module_& m);
void bind_recurrent(nb::module_& m);
void bind_rows(nb::module_& m);
void bind_sample(nb::module_& m);
void bind_sums(nb::module_& m);

}  // namespace pagewell

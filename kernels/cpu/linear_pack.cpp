#include "linear_pack.h"

#include <algorithm>
#include <stdexcept>

#include "linear_put.h"
#include "memory.h"
#include "pool.h"

namespace pagewell {
namespace {

bool whole_groups(const Stored& rows, int64_t n_in) {
    return rows.scales != nullptr && rows.group > 0 && n_in % rows.group == 0;
}

// Whether half of each scale is a bfloat16.
bool short_scales(const Stored& rows, int64_t n_out, int64_t n_in) {
    if (!whole_groups(rows, n_in)) return false;
    return std::all_of(rows.scales, rows.scales + n_out * (n_in / rows.group), [](float scale) {
        const float half = scale * 0.5f;
        uint32_t bits;
        std::memcpy(&bits, &half, 4);
        return (bits & 0xffff) == 0 && half + half == scale;
    });
}

// The first that fits: scales of long groups are repeated as seldom as can be.
Format format_of(const std::string& type, int64_t n_out, int64_t n_in, const Stored& rows) {
    const Source* known = nullptr;
    for (const Source& source : FORMATS) {
        if (type != source.name) continue;
        known = &source;
        if ((source.head ? rows.group : n_in) % source.group) continue;
        if (type == "INT8" && (source.head == SCALE_AND_ZERO) != (rows.zeros != nullptr)) continue;
        if (source.head == HALF_SCALE && !short_scales(rows, n_out, n_in)) continue;
        return Format(&source - FORMATS);
    }
    if (known == nullptr) throw std::invalid_argument(type + " is not a type of packed weights.");
    const char* what = known->head ? "A group of " : "A row of ";
    throw std::invalid_argument(what + type + " has whole blocks of " + std::to_string(known->group) + " values, not " +
                                std::to_string(known->head ? rows.group : n_in) + ".");
}

// Columns 0 .. n_in - 1 in any order, or null.
std::shared_ptr<const std::vector<int32_t>> checked_order(const int32_t* order, int64_t n_in) {
    if (order == nullptr) return nullptr;
    std::vector<bool> seen(size_t(n_in), false);
    for (int64_t i = 0; i < n_in; ++i) {
        if (order[i] < 0 || order[i] >= n_in || seen[size_t(order[i])]) {
            throw std::invalid_argument("The order of a weight's columns has each of 0 to " + std::to_string(n_in - 1) + " once.");
        }
        seen[size_t(order[i])] = true;
    }
    return std::make_shared<const std::vector<int32_t>>(order, order + n_in);
}

}  // namespace

const char* Packed::format_name() const {
    return FORMATS[format_].name;
}

bool Packed::same_order(const Packed& other) const {
    return order_ == other.order_ || (order_ && other.order_ && *order_ == *other.order_);
}

Packed::Packed(const std::string& type, int64_t n_out, int64_t n_in, const Stored& rows)
    : format_(format_of(type, n_out, n_in, rows)), n_out_(n_out), n_in_(n_in), order_(checked_order(rows.order, n_in)) {
    const Source& source = FORMATS[format_];
    if (n_out < 1 || n_in < 1) throw std::invalid_argument("A weight has at least one row of one block.");
    if (source.head && (!whole_groups(rows, n_in) || n_in % source.n_values)) {
        throw std::invalid_argument(type + " needs scales for whole groups, which divide a row, and rows of whole blocks of 32 values.");
    }
    const int64_t n_blocks = n_in / source.n_values;
    const int64_t block_bytes = PANEL_BYTES[format_];
    panel_bytes_ = n_blocks * block_bytes;
    data_ = weight_memory(size_t(n_panels() * panel_bytes_));
    const Put put = PUT[format_];
    pool().run(n_panels(), [&](int64_t i) {
        uint8_t* out = data_.get() + i * panel_bytes_;
        const int n_rows = int(n_out - i * PANEL < PANEL ? n_out - i * PANEL : PANEL);
        if (n_rows < PANEL) std::memset(out, 0, size_t(panel_bytes_));
        for (int row = 0; row < n_rows; ++row) {
            const int64_t at = i * PANEL + row;
            const uint8_t* in = rows.data + at * rows.row_bytes;
            for (int64_t b = 0; b < n_blocks; ++b) {
                put(in + b * source.n_bytes, row, out + b * block_bytes);
                if (source.head) put_head(rows, source.head, at * (n_in / rows.group), b * source.n_values, row, out + b * block_bytes);
            }
        }
    });
}

}  // namespace pagewell

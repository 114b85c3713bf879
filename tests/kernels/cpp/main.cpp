// Runs the kernels of each level that this processor has against plain loops. Arguments name levels that must be among them.
#include <algorithm>
#include <cstdio>
#include <string>

#include "check.h"
#include "kernels/cpu/isa.h"

int main(int n_arguments, char** arguments) {
    using namespace pagewell;
    const auto levels = usable_levels();
    for (int i = 1; i < n_arguments; ++i) {
        if (std::find(levels.begin(), levels.end(), arguments[i]) != levels.end()) continue;
        std::printf("%s cannot be run here\n", arguments[i]);
        return 2;
    }
    int64_t n_mismatches = 0;
    for (const auto& level : levels) {
        set_level(level);
        for (const auto& test : tests()) {
            Check check;
            test.run(check);
            std::printf("%s %s: %lld values, %lld mismatches\n", level.c_str(), test.name,
                        static_cast<long long>(check.n_compared()), static_cast<long long>(check.n_mismatches()));
            n_mismatches += check.n_mismatches() + (check.n_compared() == 0);
        }
    }
    return n_mismatches != 0 || levels.empty() || tests().empty();
}

// Text is tokenised step by step: Ctrl-C ends it, and a regular expression has a stack that is large enough. Upstream's
// std::regex calls itself for each character of a match, so that 20 kB of spaces overflow a thread's stack.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

// Throws after Ctrl-C, and shortly before the stack of `gpl_on_stack` is full.
void gpl_step();
// Does the work on `n` characters on a thread that has a stack for it, and waits.
void gpl_on_stack(size_t n, const std::function<void()> & work);

// A place in the text that a regular expression is matched with.
template <typename C> struct gpl_place : std::basic_string<C>::const_iterator {
    using base = typename std::basic_string<C>::const_iterator;
    gpl_place() = default;
    gpl_place(base at) : base(at) {}
    gpl_place & operator++() {
        gpl_step();
        base::operator++();
        return *this;
    }
    gpl_place operator++(int) {
        gpl_place before = *this;
        ++*this;
        return before;
    }
};

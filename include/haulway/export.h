// The five macros of the project, and nothing else.

#pragma once

#define HAULWAY_EXPORT [[gnu::visibility("default")]]

#if defined(__clang__)
#define HAULWAY_LIFETIME_BOUND [[clang::lifetimebound]]
#define HAULWAY_GUARDED_BY(mutex) __attribute__((guarded_by(mutex)))
#else
#define HAULWAY_LIFETIME_BOUND
#define HAULWAY_GUARDED_BY(mutex)
#endif

// Returns from the enclosing function if `expression`, a Status, is not ok.
#define HAULWAY_TRY(expression)                              \
  do {                                                       \
    ::haulway::Status haulway_try_status = (expression);     \
    if (!haulway_try_status.ok()) return haulway_try_status; \
  } while (false)

// Assigns the value of `expression`, a Result, to `target`, which may declare
// a variable; returns from the enclosing function if there is no value. At
// most one per line.
#define HAULWAY_ASSIGN(target, expression) \
  HAULWAY_ASSIGN_IN(HAULWAY_ASSIGN_NAME(__LINE__), target, expression)
#define HAULWAY_ASSIGN_NAME(line) HAULWAY_ASSIGN_JOIN(line)
#define HAULWAY_ASSIGN_JOIN(line) haulway_result_##line
#define HAULWAY_ASSIGN_IN(name, target, expression) \
  auto name = (expression);                         \
  if (!name.ok()) return std::move(name).status();  \
  target = std::move(name).value()

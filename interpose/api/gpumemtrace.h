/* Marks in the trace, for programs that want to name their steps and phases.
 *
 * Link nothing: the functions are weak, and null in a process without the shim. Or use the macros, which do
 * nothing then:
 *
 *     #include <gpumemtrace.h>
 *     for (int step = 0; step < steps; ++step) {
 *       GPUMEMTRACE_STEP(step);
 *       GPUMEMTRACE_PUSH("forward");
 *       ...
 *       GPUMEMTRACE_POP();
 *     }
 */
#ifndef GPUMEMTRACE_H_
#define GPUMEMTRACE_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GPUMEMTRACE_WEAK __attribute__((weak))

/* One moment, named. */
void gpumemtrace_mark(const char* text) GPUMEMTRACE_WEAK;
/* A step of the program begins: one iteration of its main loop. The report measures growth in steps. */
void gpumemtrace_step(uint64_t number) GPUMEMTRACE_WEAK;
/* A range begins and ends on this thread; ranges nest. */
void gpumemtrace_push(const char* text) GPUMEMTRACE_WEAK;
void gpumemtrace_pop(void) GPUMEMTRACE_WEAK;
/* Asks for a census: who holds which tensor, taken by the Python interpreter soon. 1 = it will be taken. */
int gpumemtrace_census(void) GPUMEMTRACE_WEAK;

#ifdef __cplusplus
}
#endif

#define GPUMEMTRACE_MARK(text) (gpumemtrace_mark ? gpumemtrace_mark(text) : (void)0)
#define GPUMEMTRACE_STEP(number) (gpumemtrace_step ? gpumemtrace_step(number) : (void)0)
#define GPUMEMTRACE_PUSH(text) (gpumemtrace_push ? gpumemtrace_push(text) : (void)0)
#define GPUMEMTRACE_POP() (gpumemtrace_pop ? gpumemtrace_pop() : (void)0)

#endif /* GPUMEMTRACE_H_ */

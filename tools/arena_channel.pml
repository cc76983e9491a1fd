/* A model for spin of the protocol between a worker and its parent: a ring of
 * pieces of bytes, a bell on which each side sleeps, and abandoned passes.
 *
 * Checked for every interleaving: the reader reads what was written, in order,
 * also across the end of the ring; no wake-up is lost (neither side sleeps for
 * ever while the other waits for it); if a side dies at any point, the other
 * can go on, since no lock has an owner.
 *
 * The bell is in src/arena/futex.h, the ring in channel_sender.cc and
 * channel_receiver.cc. A futex's compare-and-sleep is one step, as in the
 * kernel; an atomic read-modify-write is one step, as in the processor. A real
 * sleep may also end without a reason, after a signal or kLivenessNs; the model
 * allows that only if a side is dead, so that it cannot hide a lost wake-up.
 *
 * tools/check_arena_model.sh runs it.
 */

#ifndef RING
#define RING 2      /* Pieces that the ring holds. */
#endif
#ifndef ITEMS
#define ITEMS 5     /* More than two rounds of the ring. */
#endif
#ifndef PASSES
#define PASSES 2
#endif

byte ring[RING];
byte head, tail;            /* Counts of all pieces, as in the code. */
byte wanted = 1;            /* The pass that the parent wants. */
bool aborted;

byte to_worker_rings, to_worker_sleepers;
byte to_parent_rings, to_parent_sleepers;

bool worker_dead, parent_dead;   /* Killed; the memory is unchanged. */
bool worker_done, parent_done;

/* The step of Ring() that checks for sleepers, then the wake-up. */
#define RING_BELL(rings, sleepers) \
  if \
  :: atomic { sleepers != 0 -> skip } -> rings++ \
  :: atomic { sleepers == 0 -> skip } \
  fi

/* Sleeps until the bell is rung; `seen` was read before. */
#define SLEEP(rings, seen, other_dead) \
  (rings != seen || other_dead)

#define WAIT(rings, sleepers, ready, other_dead) \
  do \
  :: atomic { (ready) -> break } \
  :: atomic { else -> sleepers++ }; \
     seen = rings; \
     if \
     :: (ready) -> skip \
     :: else -> SLEEP(rings, seen, other_dead) \
     fi; \
     atomic { sleepers-- }; \
     if \
     :: other_dead && !(ready) -> goto ended \
     :: else -> skip \
     fi \
  od

/* With KILL_WORKER or KILL_PARENT, a process may stop for good here. */
#ifdef KILL_WORKER
#define MAY_DIE_W if :: skip :: worker_dead = true; goto dead fi
#else
#define MAY_DIE_W skip
#endif
#ifdef KILL_PARENT
#define MAY_DIE_P if :: skip :: parent_dead = true; goto dead fi
#else
#define MAY_DIE_P skip
#endif

active proctype worker() {
  byte epoch = 0, n, seen;
next_pass:
  WAIT(to_worker_rings, to_worker_sleepers,
       (wanted != epoch || aborted), parent_dead);
  if :: aborted -> goto ended :: else -> epoch = wanted fi;
  n = 0;
  do
  :: n == ITEMS -> goto next_pass
  :: else ->
     MAY_DIE_W;
     WAIT(to_worker_rings, to_worker_sleepers,
          (head - tail < RING || wanted != epoch || aborted), parent_dead);
     if
     :: aborted -> goto ended
     :: !aborted && wanted != epoch -> goto next_pass
     :: else ->
        assert(head - tail < RING);
        /* The item, with the number of its pass. */
        ring[head % RING] = epoch * 16 + n;
        MAY_DIE_W;
        head++;
        RING_BELL(to_parent_rings, to_parent_sleepers);
        n++
     fi
  od;
ended:
  worker_done = true;
  goto out;
dead:
  skip;
out:
  skip
}

active proctype parent() {
  byte n, pass = 1, seen, item;
  do
  :: n == ITEMS || pass > PASSES -> break
  :: else ->
     MAY_DIE_P;
     WAIT(to_parent_rings, to_parent_sleepers, (head != tail), worker_dead);
     assert(head - tail <= RING);
     item = ring[tail % RING];
     tail++;
     RING_BELL(to_worker_rings, to_worker_sleepers);
     if
     :: item / 16 == pass ->
        assert(item % 16 == n);     /* In order, none lost, none twice. */
        n++;
        if
        :: pass < PASSES ->         /* Abandons the pass for another. */
           pass++;
           n = 0;
           wanted = pass;
           RING_BELL(to_worker_rings, to_worker_sleepers)
        :: skip
        fi
     :: else -> assert(item / 16 < pass)
     fi
  od;
  aborted = true;
  RING_BELL(to_worker_rings, to_worker_sleepers);
ended:
  parent_done = true;
  goto out;
dead:
  skip;
out:
  skip
}

/* A process that was not killed comes to an end: checked as the absence of
 * invalid end states, since a sleep that never ends is one. */

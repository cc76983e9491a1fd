/* The protocol between a worker and its parent, for spin: a ring of bytes in
 * pieces, a bell that each side sleeps on, and passes that are given up.
 *
 * Checked for every interleaving: what is read is what was written, in order,
 * also over the end of the ring; no wake-up is lost (nobody sleeps for ever
 * while the other side waits for it); a side that dies at any point leaves
 * the other able to go on, since no lock has an owner.
 *
 * src/arena/futex.h has the bell, channel_sender.cc and channel_receiver.cc
 * the ring. A futex's compare-and-sleep is one step, as the kernel's is; an
 * atomic read-modify-write is one step, as the processor's is. A sleep may
 * also end for no reason, as after a signal or kLivenessNs; the model leaves
 * that out unless a side is dead, so that a lost wake-up cannot hide in it.
 *
 * tools/check_arena_model.sh runs it.
 */

#ifndef RING
#define RING 2      /* Pieces that the ring holds. */
#endif
#ifndef ITEMS
#define ITEMS 5     /* More than twice round. */
#endif
#ifndef PASSES
#define PASSES 2
#endif

byte ring[RING];
byte head, tail;            /* Counts of all pieces ever, as in the code. */
byte wanted = 1;            /* The pass that the parent wants. */
bool aborted;

byte to_worker_rings, to_worker_sleepers;
byte to_parent_rings, to_parent_sleepers;

bool worker_dead, parent_dead;   /* Killed; their memory stays as it is. */
bool worker_done, parent_done;

/* The one step of Ring() that decides, then the wake-up. */
#define RING_BELL(rings, sleepers) \
  if \
  :: atomic { sleepers != 0 -> skip } -> rings++ \
  :: atomic { sleepers == 0 -> skip } \
  fi

/* Sleeps until the bell is rung, `seen` having been read before. */
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

/* At any step, if KILL says so, a process stops for good. */
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
        /* The item, which says of which pass it is. */
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
        :: pass < PASSES ->         /* Gives the pass up, for another. */
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

/* Whoever was not killed comes to an end: checked as the absence of invalid
 * end states, since every sleep that is never ended is one. */

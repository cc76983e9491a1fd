"""A trainer and its rollout workers: weights one way, results the other.

    python rollout_workers.py STEPS [WORKERS]

The trainer publishes its policy after every step. Workers always play with the
newest version, which they read without a copy, and return their reward. The
policy learns which of ten levers pays most.
"""

import multiprocessing
import os
import sys

import numpy

import haulway

NAME = f"rollout-{os.getpid()}"
PAYS = numpy.linspace(0, 1, 10)  # The last lever is the best.


def play(name, worker, results):
    results.cancel_join_thread()  # Nobody takes the last results.
    random = numpy.random.default_rng(worker)
    with haulway.subscribe(name, timeout=60) as policy:
        while not policy.state["done"]:
            chances = policy.state["chances"]
            levers = random.choice(len(chances), 100, p=chances)
            results.put((policy.version, levers, PAYS[levers]))
            policy.wait(timeout=60)


def main(steps, workers):
    results = multiprocessing.Queue()
    preferences, done = numpy.zeros(10), False
    def publish():
        chances = numpy.exp(preferences) / numpy.exp(preferences).sum()
        haulway.publish(NAME, {"chances": chances, "done": done})
        return chances

    publish()
    players = [multiprocessing.Process(target=play, args=(NAME, i, results))
               for i in range(workers)]
    for player in players:
        player.start()
    for _ in range(steps):
        version, levers, payments = results.get(timeout=60)
        numpy.add.at(preferences, levers, 0.1 * (payments - payments.mean()))
        chances = publish()
    done = True
    publish()
    for player in players:
        player.join(60)
    print(f"lever {chances.argmax()} with {chances.max():.2f}, from version {version}")


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2)

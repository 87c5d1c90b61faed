"""The twelve lines of the README: a log, a split, a model, recommendations, and how good they are."""

import rootbeam as rb

log = rb.simulate(users=800, items=300, events=20_000, days=60, seed=7)  # made up
events = rb.read_events(log.events)  # your own: a path, such as "events.parquet"
split = rb.split(events, by="time")
rec = rb.Recommender().fit(split.train, split.valid, items=log.items)
print(rec.recommend(["u1", "u2"], k=2))
print(rec.recommend_from_history([["i7", "i9"]], k=2))  # someone the log does not know
measured = rec.evaluate(split.test)
ndcg = measured.metrics["ndcg@10"]
print(f"{rec.model.trained.rung}: ndcg@10 {ndcg.mean:.3f} [{ndcg.low:.3f}, {ndcg.high:.3f}], {ndcg.n} users")
rec.save("model")  # and back: rb.load("model")

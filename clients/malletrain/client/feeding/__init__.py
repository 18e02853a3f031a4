"""The feed: one process per node, owner and data set that prepares samples for several trainings.

`malletrain.client.feed` is what scripts use. The parts:

- a training's side: `subscription` (asks for samples), `launching` (finds or starts the feed), `own_reading`
  (prepares samples in the training itself)
- the feed's side: `process` (the program), `server` (its event loop), `group` (trainings near each other), `schedule`
  (what to prepare, keep and drop; pure), `ring_space` (where samples lie; pure), `preparing` (its processes that
  prepare samples), `costs` (what that takes; pure)
- both: `codec` (samples as bytes), `messages` (on the wire), `ring_memory`, `private_folder`, `source`, `seeding`
"""

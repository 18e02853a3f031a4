BEGIN TRANSACTION;
CREATE TABLE counters (
	name VARCHAR(32) NOT NULL, 
	value INTEGER NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "counters" VALUES('plan_generation',12);
CREATE TABLE jobs (
	number INTEGER NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	body TEXT NOT NULL, 
	PRIMARY KEY (number)
);
INSERT INTO "jobs" VALUES(1,'CANCELLED','{"number":1,"spec":{"name":"finished","command":["/usr/bin/python3","/srv/example/loop.py","400"],"working_directory":"/srv/example","min_nodes":1,"max_nodes":2,"environment":{},"permitted_nodes":[],"slots_per_node":0,"scale_up_seconds":null,"scale_down_seconds":null,"curve":[],"weight":1.0,"target_samples":0,"max_restarts":3,"profile":"ALWAYS","family":"cnn","backend":"UNSPECIFIED"},"state":"CANCELLED","reason":"cancelled by its user","create_time":1795313879.5682545,"update_time":1795313979.7472498,"wanted":[],"commanded":[],"confirmed":[],"held":[],"trained":[],"releases":[],"plan_generation":10,"incarnation":4,"supervised":false,"serving":false,"sequence":7,"taken_sequence":0,"stop":null,"preempted":false,"restarts":1,"strikes":1,"not_before":null,"changed_at":1795313979.351695,"good_since":null,"stalled_since":null,"done_since":null,"samples":146848,"rescales":3,"preemptions":2,"metrics":{},"start_time":1795313879.9832165,"end_time":1795313979.7472498}');
INSERT INTO "jobs" VALUES(2,'FAILED','{"number":2,"spec":{"name":"fails","command":["/usr/bin/python3","/srv/example/loop.py","10","3"],"working_directory":"/srv/example","min_nodes":1,"max_nodes":1,"environment":{},"permitted_nodes":[],"slots_per_node":0,"scale_up_seconds":null,"scale_down_seconds":null,"curve":[],"weight":1.0,"target_samples":0,"max_restarts":0,"profile":"UNSPECIFIED","family":"","backend":"UNSPECIFIED"},"state":"FAILED","reason":"worker on n3: exit status 3, 3 times within 60 s of a start; restarted 0 times before; the last lines of its log:\nsupervisor | 2026-11-22 02:18:01,099 malletrain.supervisor.actor command 1: {''n3'': 1}\nsupervisor | 2026-11-22 02:18:01,132 malletrain.supervisor.actor command 1: {''n3'': 1}\nsupervisor | 2026-11-22 02:18:01,236 malletrain.supervisor.restarting_world generation 1: {''n3'': 1}\nsupervisor | 2026-11-22 02:18:01,620 malletrain.supervisor.actor worker 8712 on n3 ended with 3\nsupervisor | 2026-11-22 02:18:01,620 malletrain.supervisor.restarting_world generation 2: {''n3'': 1}\nsupervisor | 2026-11-22 02:18:01,955 malletrain.supervisor.actor worker 8727 on n3 ended with 3\nsupervisor | 2026-11-22 02:18:03,023 malletrain.supervisor.restarting_world generation 3: {''n3'': 1}\nsupervisor | 2026-11-22 02:18:03,340 malletrain.supervisor.actor worker 8916 on n3 ended with 3\nsupervisor | 2026-11-22 02:18:03,341 malletrain.supervisor.restarting_world generation 4: {''n3'': 1}","create_time":1795313880.718362,"update_time":1795313883.5404096,"wanted":[],"commanded":[],"confirmed":[],"held":[],"trained":[],"releases":[],"plan_generation":3,"incarnation":1,"supervised":false,"serving":false,"sequence":1,"taken_sequence":0,"stop":null,"preempted":false,"restarts":0,"strikes":1,"not_before":null,"changed_at":1795313883.3444018,"good_since":null,"stalled_since":null,"done_since":null,"samples":0,"rescales":0,"preemptions":0,"metrics":{},"start_time":1795313881.2681224,"end_time":1795313883.5404096}');
INSERT INTO "jobs" VALUES(3,'RUNNING','{"number":3,"spec":{"name":"trains-on","command":["/usr/bin/python3","/srv/example/loop.py","100000"],"working_directory":"/srv/example","min_nodes":1,"max_nodes":3,"environment":{"GREETING":"hello"},"permitted_nodes":[],"slots_per_node":0,"scale_up_seconds":null,"scale_down_seconds":null,"curve":[],"weight":1.0,"target_samples":1000000,"max_restarts":3,"profile":"UNSPECIFIED","family":"cnn","backend":"UNSPECIFIED"},"state":"RUNNING","reason":"trains on 2 nodes","create_time":1795313924.138853,"update_time":1795313999.497585,"wanted":["n3","n4"],"commanded":["n3","n4"],"confirmed":["n3","n4"],"held":["n3","n4"],"trained":["n3","n4"],"releases":[],"plan_generation":12,"incarnation":1,"supervised":true,"serving":true,"sequence":4,"taken_sequence":4,"stop":null,"preempted":false,"restarts":0,"strikes":0,"not_before":null,"changed_at":1795313979.8093827,"good_since":1795313924.6840098,"stalled_since":null,"done_since":null,"samples":116128,"rescales":3,"preemptions":0,"metrics":{},"start_time":1795313924.6840098,"end_time":null}');
INSERT INTO "jobs" VALUES(4,'WAITING','{"number":4,"spec":{"name":"second","command":["/usr/bin/python3","/srv/example/loop.py","100000"],"working_directory":"/srv/example","min_nodes":1,"max_nodes":2,"environment":{},"permitted_nodes":[],"slots_per_node":0,"scale_up_seconds":3.0,"scale_down_seconds":2.0,"curve":[{"nodes":1,"rate":100.0},{"nodes":2,"rate":180.0}],"weight":2.0,"target_samples":0,"max_restarts":3,"profile":"UNSPECIFIED","family":"","backend":"UNSPECIFIED"},"state":"WAITING","reason":"admitted to place 2 of 2, waits for nodes","create_time":1795313925.550002,"update_time":1795313979.8093827,"wanted":[],"commanded":[],"confirmed":[],"held":[],"trained":[],"releases":[],"plan_generation":12,"incarnation":0,"supervised":false,"serving":false,"sequence":0,"taken_sequence":0,"stop":null,"preempted":false,"restarts":0,"strikes":0,"not_before":null,"changed_at":0.0,"good_since":null,"stalled_since":null,"done_since":null,"samples":0,"rescales":0,"preemptions":0,"metrics":{},"start_time":null,"end_time":null}');
INSERT INTO "jobs" VALUES(5,'QUEUED','{"number":5,"spec":{"name":"queued","command":["/usr/bin/python3","/srv/example/loop.py","100000"],"working_directory":"/srv/example","min_nodes":1,"max_nodes":2,"environment":{},"permitted_nodes":[1,2],"slots_per_node":0,"scale_up_seconds":null,"scale_down_seconds":null,"curve":[],"weight":1.0,"target_samples":0,"max_restarts":5,"profile":"UNSPECIFIED","family":"","backend":"UNSPECIFIED"},"state":"QUEUED","reason":"waits for one of 2 places","create_time":1795313926.9422133,"update_time":1795313926.9422133,"wanted":[],"commanded":[],"confirmed":[],"held":[],"trained":[],"releases":[],"plan_generation":0,"incarnation":0,"supervised":false,"serving":false,"sequence":0,"taken_sequence":0,"stop":null,"preempted":false,"restarts":0,"strikes":0,"not_before":null,"changed_at":0.0,"good_since":null,"stalled_since":null,"done_since":null,"samples":0,"rescales":0,"preemptions":0,"metrics":{},"start_time":null,"end_time":null}');
INSERT INTO "jobs" VALUES(6,'CANCELLED','{"number":6,"spec":{"name":"cancelled","command":["/usr/bin/python3","/srv/example/loop.py","1000"],"working_directory":"/srv/example","min_nodes":1,"max_nodes":2,"environment":{},"permitted_nodes":[],"slots_per_node":0,"scale_up_seconds":null,"scale_down_seconds":null,"curve":[],"weight":1.0,"target_samples":0,"max_restarts":3,"profile":"UNSPECIFIED","family":"","backend":"UNSPECIFIED"},"state":"CANCELLED","reason":"cancelled by its user","create_time":1795313928.4243577,"update_time":1795313929.7700005,"wanted":[],"commanded":[],"confirmed":[],"held":[],"trained":[],"releases":[],"plan_generation":0,"incarnation":0,"supervised":false,"serving":false,"sequence":0,"taken_sequence":0,"stop":null,"preempted":false,"restarts":0,"strikes":0,"not_before":null,"changed_at":0.0,"good_since":null,"stalled_since":null,"done_since":null,"samples":0,"rescales":0,"preemptions":0,"metrics":{},"start_time":null,"end_time":1795313929.7700005}');
CREATE TABLE journal (
	sequence INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	unix_seconds FLOAT NOT NULL, 
	job_number INTEGER NOT NULL, 
	from_state VARCHAR(16), 
	to_state VARCHAR(16) NOT NULL, 
	reason TEXT NOT NULL, 
	nodes TEXT NOT NULL, 
	release_seconds FLOAT NOT NULL
);
INSERT INTO "journal" VALUES(1,1.79531387956825447087e+09,1,NULL,'QUEUED','waits for one of 2 places','[]',0.0);
INSERT INTO "journal" VALUES(2,1.79531387956825447087e+09,1,'QUEUED','WAITING','admitted to place 1 of 2, waits for nodes','[]',0.0);
INSERT INTO "journal" VALUES(3,1.79531387963197946542e+09,1,'WAITING','STARTING','plan 2: starts on 2 nodes','["n1", "n2"]',0.0);
INSERT INTO "journal" VALUES(4,1.79531387998321652408e+09,1,'STARTING','RUNNING','trains on 2 nodes','["n1", "n2"]',0.0);
INSERT INTO "journal" VALUES(5,1.79531388071836209294e+09,2,NULL,'QUEUED','waits for one of 2 places','[]',0.0);
INSERT INTO "journal" VALUES(6,1.79531388071836209294e+09,2,'QUEUED','WAITING','admitted to place 2 of 2, waits for nodes','[]',0.0);
INSERT INTO "journal" VALUES(7,1.79531388078206109995e+09,2,'WAITING','STARTING','plan 3: starts on 1 node','["n3"]',0.0);
INSERT INTO "journal" VALUES(8,1.79531388126812243462e+09,2,'STARTING','RUNNING','trains on 1 node','["n3"]',0.0);
INSERT INTO "journal" VALUES(9,1.79531388162395977975e+09,2,'RUNNING','RESCALING','workers were lost, on: n3','["n3"]',0.0);
INSERT INTO "journal" VALUES(10,1.79531388164452242856e+09,2,'RESCALING','RUNNING','trains on 1 node','["n3"]',0.0);
INSERT INTO "journal" VALUES(11,1795313881.95691,2,'RUNNING','RESCALING','workers were lost, on: n3','["n3"]',0.0);
INSERT INTO "journal" VALUES(12,1.79531388305040311807e+09,2,'RESCALING','RUNNING','trains on 1 node','["n3"]',0.0);
INSERT INTO "journal" VALUES(13,1.79531388334440183637e+09,2,'RUNNING','RESCALING','workers were lost, on: n3','["n3"]',0.0);
INSERT INTO "journal" VALUES(14,1.79531388354040956495e+09,2,'RESCALING','FAILED','worker on n3: exit status 3, 3 times within 60 s of a start; restarted 0 times before; the last lines of its log:
supervisor | 2026-11-22 02:18:01,099 malletrain.supervisor.actor command 1: {''n3'': 1}
supervisor | 2026-11-22 02:18:01,132 malletrain.supervisor.actor command 1: {''n3'': 1}
supervisor | 2026-11-22 02:18:01,236 malletrain.supervisor.restarting_world generation 1: {''n3'': 1}
supervisor | 2026-11-22 02:18:01,620 malletrain.supervisor.actor worker 8712 on n3 ended with 3
supervisor | 2026-11-22 02:18:01,620 malletrain.supervisor.restarting_world generation 2: {''n3'': 1}
supervisor | 2026-11-22 02:18:01,955 malletrain.supervisor.actor worker 8727 on n3 ended with 3
supervisor | 2026-11-22 02:18:03,023 malletrain.supervisor.restarting_world generation 3: {''n3'': 1}
supervisor | 2026-11-22 02:18:03,340 malletrain.supervisor.actor worker 8916 on n3 ended with 3
supervisor | 2026-11-22 02:18:03,341 malletrain.supervisor.restarting_world generation 4: {''n3'': 1}','[]',0.0);
INSERT INTO "journal" VALUES(15,1.79531388825507831575e+09,1,'RUNNING','RESCALING','workers were lost, on: n1, n2','["n1", "n2"]',0.0);
INSERT INTO "journal" VALUES(16,1.79531388827758765216e+09,1,'RESCALING','RUNNING','trains on 2 nodes','["n1", "n2"]',0.0);
INSERT INTO "journal" VALUES(17,1.79531389695610284805e+09,1,'RUNNING','RESCALING','workers were lost, on: n1, n2','["n1", "n2"]',0.0);
INSERT INTO "journal" VALUES(18,1.79531389698300671573e+09,1,'RESCALING','RUNNING','trains on 2 nodes','["n1", "n2"]',0.0);
INSERT INTO "journal" VALUES(19,1.79531390560969877239e+09,1,'RUNNING','RESCALING','workers were lost, on: n1, n2','["n1", "n2"]',0.0);
INSERT INTO "journal" VALUES(20,1.79531390562704706186e+09,1,'RESCALING','RESCALING','preempted: n1 left','["n2"]',0.0);
INSERT INTO "journal" VALUES(21,1.7953139056572182178e+09,1,'RESCALING','RESCALING','released: no process is left on n1','["n2"]',3.3892154693603515625e-02);
INSERT INTO "journal" VALUES(22,1.79531390567249822618e+09,1,'RESCALING','WAITING','did not survive a preemption, waits for nodes (worker on n1: exit status 1, 3 times within 60 s of a start)','[]',0.0);
INSERT INTO "journal" VALUES(23,1.79531390567249822618e+09,1,'WAITING','STARTING','plan 4: starts on 1 node','["n2"]',0.0);
INSERT INTO "journal" VALUES(24,1.79531390616702222822e+09,1,'STARTING','RUNNING','trains on 1 node','["n2"]',0.0);
INSERT INTO "journal" VALUES(25,1.7953139062248063087e+09,1,'RUNNING','RESCALING','plan 6: from 1 to 2 nodes','["n2", "n3"]',0.0);
INSERT INTO "journal" VALUES(26,1.79531390632446050644e+09,1,'RESCALING','RUNNING','trains on 2 nodes','["n2", "n3"]',0.0);
INSERT INTO "journal" VALUES(27,1.79531391476263952255e+09,1,'RUNNING','RESCALING','workers were lost, on: n2, n3','["n2", "n3"]',0.0);
INSERT INTO "journal" VALUES(28,1.79531391478310370446e+09,1,'RESCALING','RUNNING','trains on 2 nodes','["n2", "n3"]',0.0);
INSERT INTO "journal" VALUES(29,1.79531392299166798589e+09,1,'RUNNING','RESCALING','workers were lost, on: n2, n3','["n2", "n3"]',0.0);
INSERT INTO "journal" VALUES(30,1.7953139230125448704e+09,1,'RESCALING','RUNNING','trains on 2 nodes','["n2", "n3"]',0.0);
INSERT INTO "journal" VALUES(31,1.79531392413885307313e+09,3,NULL,'QUEUED','waits for one of 2 places','[]',0.0);
INSERT INTO "journal" VALUES(32,1.79531392413885307313e+09,3,'QUEUED','WAITING','admitted to place 2 of 2, waits for nodes','[]',0.0);
INSERT INTO "journal" VALUES(33,1.79531392419909596441e+09,3,'WAITING','STARTING','plan 7: starts on 1 node','["n4"]',0.0);
INSERT INTO "journal" VALUES(34,1.79531392468400979043e+09,3,'STARTING','RUNNING','trains on 1 node','["n4"]',0.0);
INSERT INTO "journal" VALUES(35,1.79531392555000209815e+09,4,NULL,'QUEUED','waits for one of 2 places','[]',0.0);
INSERT INTO "journal" VALUES(36,1.79531392694221329691e+09,5,NULL,'QUEUED','waits for one of 2 places','[]',0.0);
INSERT INTO "journal" VALUES(37,1.79531392842435765268e+09,6,NULL,'QUEUED','waits for one of 2 places','[]',0.0);
INSERT INTO "journal" VALUES(38,1.79531392977000045776e+09,6,'QUEUED','CANCELLED','cancelled by its user','[]',0.0);
INSERT INTO "journal" VALUES(39,1.79531393123734855652e+09,1,'RUNNING','RESCALING','workers were lost, on: n2, n3','["n2", "n3"]',0.0);
INSERT INTO "journal" VALUES(40,1.79531393125508451462e+09,1,'RESCALING','RESCALING','preempted: n2 left','["n3"]',0.0);
INSERT INTO "journal" VALUES(41,1.79531393126818370822e+09,1,'RESCALING','RESCALING','released: no process is left on n2','["n3"]',1.89189910888671875e-02);
INSERT INTO "journal" VALUES(42,1.79531393127789163591e+09,1,'RESCALING','WAITING','did not survive a preemption, waits for nodes (worker on n2: exit status 1, 3 times within 60 s of a start)','[]',0.0);
INSERT INTO "journal" VALUES(43,1.79531393127789163591e+09,1,'WAITING','STARTING','plan 7: starts on 1 node','["n3"]',0.0);
INSERT INTO "journal" VALUES(44,1.79531393157713389397e+09,1,'STARTING','RUNNING','trains on 1 node','["n3"]',0.0);
INSERT INTO "journal" VALUES(45,1.79531393981053757663e+09,1,'RUNNING','RESCALING','workers were lost, on: n3','["n3"]',0.0);
INSERT INTO "journal" VALUES(46,1795313939.82824,1,'RESCALING','RUNNING','trains on 1 node','["n3"]',0.0);
INSERT INTO "journal" VALUES(47,1.79531394807041668891e+09,1,'RUNNING','RESCALING','workers were lost, on: n3','["n3"]',0.0);
INSERT INTO "journal" VALUES(48,1.79531394808612823491e+09,1,'RESCALING','RUNNING','trains on 1 node','["n3"]',0.0);
INSERT INTO "journal" VALUES(49,1.79531395640274286269e+09,1,'RUNNING','RESCALING','workers were lost, on: n3','["n3"]',0.0);
INSERT INTO "journal" VALUES(50,1.79531395659402108195e+09,1,'RESCALING','WAITING','restart 1 of 3 in 1 s: worker on n3: exit status 1, 3 times within 60 s of a start','[]',0.0);
INSERT INTO "journal" VALUES(51,1.79531395665100765223e+09,3,'RUNNING','RESCALING','plan 9: from 1 to 2 nodes','["n4", "n3"]',0.0);
INSERT INTO "journal" VALUES(52,1.79531395671643781656e+09,3,'RESCALING','RUNNING','trains on 2 nodes','["n4", "n3"]',0.0);
INSERT INTO "journal" VALUES(53,1.79531395765052032478e+09,3,'RUNNING','RESCALING','plan 10: from 2 to 1 node','["n3"]',0.0);
INSERT INTO "journal" VALUES(54,1.79531395777509975432e+09,3,'RESCALING','RUNNING','trains on 1 node','["n3"]',0.0);
INSERT INTO "journal" VALUES(55,1.79531395777509975432e+09,1,'WAITING','STARTING','plan 10: starts on 1 node','["n4"]',0.0);
INSERT INTO "journal" VALUES(56,1.79531395818467259407e+09,1,'STARTING','RUNNING','trains on 1 node','["n4"]',0.0);
INSERT INTO "journal" VALUES(57,1.79531396671788907046e+09,1,'RUNNING','RESCALING','workers were lost, on: n4','["n4"]',0.0);
INSERT INTO "journal" VALUES(58,1.79531396673958373077e+09,1,'RESCALING','RUNNING','trains on 1 node','["n4"]',0.0);
INSERT INTO "journal" VALUES(59,1.7953139750684568882e+09,1,'RUNNING','RESCALING','workers were lost, on: n4','["n4"]',0.0);
INSERT INTO "journal" VALUES(60,1.79531397509248471264e+09,1,'RESCALING','RUNNING','trains on 1 node','["n4"]',0.0);
INSERT INTO "journal" VALUES(61,1.79531397935169506076e+09,1,'RUNNING','STOPPING','cancelled by its user','["n4"]',0.0);
INSERT INTO "journal" VALUES(62,1.79531397974724984166e+09,1,'STOPPING','CANCELLED','cancelled by its user','[]',0.0);
INSERT INTO "journal" VALUES(63,1.79531397974724984166e+09,4,'QUEUED','WAITING','admitted to place 2 of 2, waits for nodes','[]',0.0);
INSERT INTO "journal" VALUES(64,1.79531397980938267709e+09,3,'RUNNING','RESCALING','plan 12: from 1 to 2 nodes','["n3", "n4"]',0.0);
INSERT INTO "journal" VALUES(65,1.79531397987789130207e+09,3,'RESCALING','RUNNING','trains on 2 nodes','["n3", "n4"]',0.0);
CREATE TABLE submissions (
	request_id VARCHAR(256) NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	job_numbers TEXT NOT NULL, 
	PRIMARY KEY (request_id)
);
INSERT INTO "submissions" VALUES('023aebce08f845c3a291d20d8d858fc7','7d375cbd93b4eaf491b39c91e215cf264d6afed217ab0ee81c14de7509cec7e7','[1]');
INSERT INTO "submissions" VALUES('d27cf855552d4d0290d4e5b2e8e90a25','ed79f5bca866a255fe1feae54af12265c314547a7db1e0c2983d476ab114e0c9','[2]');
INSERT INTO "submissions" VALUES('e5cdc70d94ad448d86cac5423f1a8d39','953132d5b1975e367ade85561f93d8cd02db7dc2a181665703135aaaccd128d0','[3]');
INSERT INTO "submissions" VALUES('6e579cd7c4b54f129e39ab04e60796d6','82b88ad660dc28ab2c18b98f74fd6b1c510b3e61aef720d0b0836fdcdda687e1','[4]');
INSERT INTO "submissions" VALUES('c4477557b14e419797813cae85ae68ad','ef9339c784e691a57460aaf27ea4a659223ba8a312591687888e0c0ae613a1ca','[5]');
INSERT INTO "submissions" VALUES('879e0da75da944feb3755325d42a69f5','a3603b4c953d203d1ec8dab1ba9d2985a0d2b27ae3a55f846096b2a3570853ae','[6]');
CREATE INDEX ix_jobs_state ON jobs (state);
CREATE INDEX ix_journal_job_number ON journal (job_number);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('journal',65);
COMMIT;

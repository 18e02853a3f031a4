BEGIN TRANSACTION;
CREATE TABLE counters (
	name VARCHAR(32) NOT NULL, 
	value INTEGER NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "counters" VALUES('plan_generation',7);
CREATE TABLE jobs (
	number INTEGER NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	body TEXT NOT NULL, 
	owner VARCHAR(256) DEFAULT '' NOT NULL, 
	PRIMARY KEY (number)
);
INSERT INTO "jobs" VALUES(1,'RUNNING','{"number":1,"spec":{"name":"job","command":["true"],"working_directory":"/","min_nodes":1,"max_nodes":4,"environment":{},"permitted_nodes":[],"slots_per_node":0,"scale_up_seconds":null,"scale_down_seconds":null,"curve":[],"weight":1.0,"target_samples":0,"max_restarts":3,"profile":"UNSPECIFIED","family":"","backend":"UNSPECIFIED"},"state":"RUNNING","reason":"trains on 2 nodes","create_time":1000.0,"update_time":1000.0,"reason_code":"CONFIRMED","wanted":["a","b"],"commanded":["a","b"],"confirmed":["a","b"],"held":["a","b"],"trained":["a","b"],"releases":[],"plan_generation":1,"incarnation":1,"supervised":true,"serving":true,"sequence":1,"taken_sequence":1,"stop":null,"preempted":false,"restarts":0,"counted_failures":0,"not_before":null,"changed_at":1000.0,"good_since":1000.0,"stalled_since":null,"done_since":null,"samples":0,"rescales":0,"preemptions":0,"metrics":{},"start_time":1000.0,"end_time":null,"owner":"","share_weight":1.0}','');
CREATE TABLE journal (
	sequence INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	unix_seconds FLOAT NOT NULL, 
	job_number INTEGER NOT NULL, 
	from_state VARCHAR(16), 
	to_state VARCHAR(16) NOT NULL, 
	reason TEXT NOT NULL, 
	nodes TEXT NOT NULL, 
	release_seconds FLOAT NOT NULL, 
	reason_code VARCHAR(32) DEFAULT 'UNSPECIFIED' NOT NULL
);
INSERT INTO "journal" VALUES(1,1000.0,1,NULL,'QUEUED','waits for one of 10 places','[]',0.0,'SUBMITTED');
INSERT INTO "journal" VALUES(2,1000.0,1,'QUEUED','WAITING','admitted to place 1 of 10, waits for nodes','[]',0.0,'ADMITTED');
INSERT INTO "journal" VALUES(3,1000.0,1,'WAITING','STARTING','plan 1: starts on 2 nodes','["a", "b"]',0.0,'PLAN_STARTED');
INSERT INTO "journal" VALUES(4,1000.0,1,'STARTING','RUNNING','trains on 2 nodes','["a", "b"]',0.0,'CONFIRMED');
CREATE TABLE owner_uses (
	owner VARCHAR(256) NOT NULL, 
	node_seconds FLOAT NOT NULL, 
	nodes INTEGER NOT NULL, 
	since FLOAT NOT NULL, 
	weight FLOAT NOT NULL, 
	PRIMARY KEY (owner)
);
INSERT INTO "owner_uses" VALUES('ada',5.0,2,1.0,1.0);
CREATE TABLE submissions (
	request_id VARCHAR(256) NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	job_numbers TEXT NOT NULL, 
	PRIMARY KEY (request_id)
);
INSERT INTO "submissions" VALUES('r1','0000000000000000000000000000000000000000000000000000000000000000','[1]');
CREATE INDEX ix_jobs_owner ON jobs (owner);
CREATE INDEX ix_jobs_state ON jobs (state);
CREATE INDEX ix_journal_job_number ON journal (job_number);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('journal',4);
COMMIT;

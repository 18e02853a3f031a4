BEGIN TRANSACTION;
CREATE TABLE monitor_jobs (
	job_id VARCHAR NOT NULL, 
	samples BIGINT NOT NULL, 
	samples_lost BIGINT NOT NULL, 
	positioned BOOLEAN NOT NULL, 
	nodes INTEGER NOT NULL, 
	last_record_unix_seconds FLOAT NOT NULL, 
	records BIGINT NOT NULL, 
	reporter_id VARCHAR NOT NULL, 
	sequence BIGINT NOT NULL, 
	dropped_records BIGINT NOT NULL, 
	usual_step_seconds FLOAT NOT NULL, 
	PRIMARY KEY (job_id)
);
INSERT INTO "monitor_jobs" VALUES('j000001',3392,0,1,3,1.00810000000000093219e+03,43,'r1',43,3,1.00000000000022737367e-01);
CREATE TABLE monitor_points (
	job_id VARCHAR NOT NULL, 
	nodes INTEGER NOT NULL, 
	rate FLOAT NOT NULL, 
	weight FLOAT NOT NULL, 
	steps BIGINT NOT NULL, 
	unix_seconds FLOAT NOT NULL, 
	relative_error FLOAT NOT NULL, 
	PRIMARY KEY (job_id, nodes)
);
INSERT INTO "monitor_points" VALUES('j000001',2,6.39999999999854480865e+02,11.0,11,1.0041000000000004775e+03,0.0);
INSERT INTO "monitor_points" VALUES('j000001',3,9.59999999999781721254e+02,11.0,11,1.00810000000000093219e+03,0.0);
CREATE TABLE monitor_reporters (
	job_id VARCHAR NOT NULL, 
	reporter_id VARCHAR NOT NULL, 
	number BIGINT NOT NULL, 
	sequence BIGINT NOT NULL, 
	dropped_records BIGINT NOT NULL, 
	PRIMARY KEY (job_id, reporter_id)
);
INSERT INTO "monitor_reporters" VALUES('j000001','r1',1,43,3);
CREATE TABLE monitor_rescales (
	job_id VARCHAR NOT NULL, 
	number BIGINT NOT NULL, 
	from_nodes INTEGER NOT NULL, 
	to_nodes INTEGER NOT NULL, 
	stall_seconds FLOAT NOT NULL, 
	unix_seconds FLOAT NOT NULL, 
	PRIMARY KEY (job_id, number)
);
INSERT INTO "monitor_rescales" VALUES('j000001',1,1,2,1.89999999999997726263e+00,1002.1);
INSERT INTO "monitor_rescales" VALUES('j000001',2,2,3,1.89999999999997726263e+00,1.00610000000000047743e+03);
COMMIT;

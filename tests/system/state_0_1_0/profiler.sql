BEGIN TRANSACTION;
CREATE TABLE profiler_documents (
	name VARCHAR(32) NOT NULL, 
	body TEXT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "profiler_documents" VALUES('desk','{"runs": [], "ledger": {"turns": {}, "counts": {}}}');
INSERT INTO "profiler_documents" VALUES('kinship','{"memories": {"j000003": {"rates": {"1": 1588.2644118485528}, "errors": {"1": 0.000829038482742652}, "doubts": {}, "times": {"1": 1795313999.390309}}, "j000004": {"rates": {}, "errors": {}, "doubts": {}, "times": {}}, "j000005": {"rates": {}, "errors": {}, "doubts": {}, "times": {}}, "j000001": {"rates": {"1": 1566.4139755682136}, "errors": {"1": 0.004550227462631015}, "doubts": {}, "times": {"1": 1795313979.3557334}}}, "families": {"cnn": [{"job_id": "j000001", "knots": [{"nodes": 1, "rate": 1566.245004718791, "steps": 3997, "error": 0.00469593979061285, "unix_seconds": 1795313979.3153057, "shared": false}], "rescales": []}, {"job_id": "j000003", "knots": [{"nodes": 1, "rate": 1578.152260388787, "steps": 3439, "error": 0.002102197391712017, "unix_seconds": 1795313999.390309, "shared": false}], "rescales": []}]}, "left": []}');
COMMIT;

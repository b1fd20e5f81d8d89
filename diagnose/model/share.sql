-- Time of each activity that is its own: shared nanoseconds are divided, hidden ones (communication under compute)
-- are not counted. Rates of overlapping kernels are judged on it, so they add up to what the device did.
CREATE OR REPLACE TABLE share AS
SELECT kernel_id, sum(e - s)::BIGINT AS own_ns FROM piece GROUP BY kernel_id;

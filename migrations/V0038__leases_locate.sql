-- Why: two machines can have copies of one data folder, and both would hold its lease and start every project. The lease says where its
-- holder's folder is: machine, boot, device and inode. Null in rows of holders from before this column.

alter table node_leases add column location jsonb;

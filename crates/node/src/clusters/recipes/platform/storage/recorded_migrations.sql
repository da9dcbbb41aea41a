-- The storage service that is started on this database later goes on after these migrations. It compares the digests of its files,
-- and finds the row of a migration by its position: row 0 is that of its migrator. Rows of an earlier version of the platform, which
-- had no row 0 and other digests, are written again in this order. What the service itself has recorded stays.
do $$
begin
    if not exists (select from storage.migrations where id = 0) then
        delete from storage.migrations where id <= 63;
    end if;
end
$$;

insert into storage.migrations (id, name, hash)
select id, name, hash
from (values
    (0, 'create-migrations-table', 'e18db593bcde2aca2a408c4d1100f6abba2195df'),
    (1, '0001-initialmigration', '6ab16121fbaa08bbd11b712d05f358f9b555d777'),
    (2, '0002-storage-schema', 'f6a1fa2c93cbcd16d4e487b362e45fca157a8dbd'),
    (3, '0003-pathtoken-column', '2cb1b0004b817b29d5b0a971af16bafeede4b70d'),
    (4, '0004-add-migrations-rls', '427c5b63fe1c5937495d9c635c263ee7a5905058'),
    (5, '0005-add-size-functions', '79e081a1455b63666c1294a440f8ad4b1e6a7f84'),
    (6, '0006-change-column-name-in-get-size', 'ded78e2f1b5d7e616117897e6443a925965b30d2'),
    (7, '0007-add-rls-to-buckets', 'e7e7f86adbc51049f341dfe8d30256c1abca17aa'),
    (8, '0008-add-public-to-buckets', 'fd670db39ed65f9d08b01db09d6202503ca2bab3'),
    (9, '0009-fix-search-function', 'af597a1b590c70519b464a4ab3be54490712796b'),
    (10, '00010-search-files-search-function', 'b595f05e92f7e91211af1bbfe9c6a13bb3391e16'),
    (11, '0011-add-trigger-to-auto-update-updated_at-column', '7425bdb14366d1739fa8a18c83100636d74dcaa2'),
    (12, '0012-add-automatic-avif-detection-flag', '8e92e1266eb29518b6a4c5313ab8f29dd0d08df9'),
    (13, '0013-add-bucket-custom-limits', 'cce962054138135cd9a8c4bcd531598684b25e7d'),
    (14, '0014-use-bytes-for-max-size', '941c41b346f9802b411f06f30e972ad4744dad27'),
    (15, '0015-add-can-insert-object-function', '934146bc38ead475f4ef4b555c524ee5d66799e5'),
    (16, '0016-add-version', '76debf38d3fd07dcfc747ca49096457d95b1221b'),
    (17, '0017-drop-owner-foreign-key', 'f1cbb288f1b7a4c1eb8c38504b80ae2a0153d101'),
    (18, '0018-add_owner_id_column_deprecate_owner', 'e7a511b379110b08e2f214be852c35414749fe66'),
    (19, '0019-alter-default-value-objects-id', '02e5e22a78626187e00d173dc45f58fa66a4f043'),
    (20, '0020-list-objects-with-delimiter', 'cd694ae708e51ba82bf012bba00caf4f3b6393b7'),
    (21, '0021-s3-multipart-uploads', '8c804d4a566c40cd1e4cc5b3725a664a9303657f'),
    (22, '0022-s3-multipart-uploads-big-ints', '9737dc258d2397953c9953d9b86920b8be0cdb73'),
    (23, '0023-optimize-search-function', '9d7e604cddc4b56a5422dc68c9313f4a1b6f132c'),
    (24, '0024-operation-function', '8312e37c2bf9e76bbe841aa5fda889206d2bf8aa'),
    (25, '0025-custom-metadata', 'd974c6057c3db1c1f847afa0e291e6165693b990'),
    (26, '0026-objects-prefixes', '215cabcb7f78121892a5a2037a09fedf9a1ae322'),
    (27, '0027-search-v2', '859ba38092ac96eb3964d83bf53ccc0b141663a6'),
    (28, '0028-object-bucket-name-sorting', 'c73a2b5b5d4041e39705814fd3a1b95502d38ce4'),
    (29, '0029-create-prefixes', 'ad2c1207f76703d11a9f9007f821620017a66c21'),
    (30, '0030-update-object-levels', '2be814ff05c8252fdfdc7cfb4b7f5c7e17f0bed6'),
    (31, '0031-objects-level-index', 'b40367c14c3440ec75f19bbce2d71e914ddd3da0'),
    (32, '0032-backward-compatible-index-on-objects', 'e0c37182b0f7aee3efd823298fb3c76f1042c0f7'),
    (33, '0033-backward-compatible-index-on-prefixes', 'b480e99ed951e0900f033ec4eb34b5bdcb4e3d49'),
    (34, '0034-optimize-search-function-v1', 'ca80a3dc7bfef894df17108785ce29a7fc8ee456'),
    (35, '0035-add-insert-trigger-prefixes', '458fe0ffd07ec53f5e3ce9df51bfdf4861929ccc'),
    (36, '0036-optimise-existing-functions', '6ae5fca6af5c55abe95369cd4f93985d1814ca8f'),
    (37, '0037-add-bucket-name-length-trigger', '3944135b4e3e8b22d6d4cbb568fe3b0b51df15c1'),
    (38, '0038-iceberg-catalog-flag-on-buckets', '02716b81ceec9705aed84aa1501657095b32e5c5'),
    (39, '0039-add-search-v2-sort-support', '6706c5f2928846abee18461279799ad12b279b78'),
    (40, '0040-fix-prefix-race-conditions-optimized', '7ad69982ae2d372b21f48fc4829ae9752c518f6b'),
    (41, '0041-add-object-level-update-trigger', '07fcf1a22165849b7a029deed059ffcde08d1ae0'),
    (42, '0042-rollback-prefix-triggers', '771479077764adc09e2ea2043eb627503c034cd4'),
    (43, '0043-fix-object-level', '84b35d6caca9d937478ad8a797491f38b8c2979f'),
    (44, '0044-vector-bucket-type', '99c20c0ffd52bb1ff1f32fb992f3b351e3ef8fb3'),
    (45, '0045-vector-buckets', '049e27196d77a7cb76497a85afae669d8b230953'),
    (46, '0046-buckets-objects-grants', 'fedeb96d60fefd8e02ab3ded9fbde05632f84aed'),
    (47, '0047-iceberg-table-metadata', '649df56855c24d8b36dd4cc1aeb8251aa9ad42c2'),
    (48, '0048-iceberg-catalog-ids', 'e0e8b460c609b9999ccd0df9ad14294613eed939'),
    (49, '0049-buckets-objects-grants-postgres', '072b1195d0d5a2f888af6b2302a1938dd94b8b3d'),
    (50, '0050-search-v2-optimised', '6323ac4f850aa14e7387eb32102869578b5bd478'),
    (51, '0051-index-backward-compatible-search', '2ee395d433f76e38bcd3856debaf6e0e5b674011'),
    (52, '0052-drop-not-used-indexes-and-functions', '5cc44c8696749ac11dd0dc37f2a3802075f3a171'),
    (53, '0053-drop-index-lower-name', 'd0cb18777d9e2a98ebe0bc5cc7a42e57ebe41854'),
    (54, '0054-drop-index-object-level', '6289e048b1472da17c31a7eba1ded625a6457e67'),
    (55, '0055-prevent-direct-deletes', '262a4798d5e0f2e7c8970232e03ce8be695d5819'),
    (56, '0056-fix-optimized-search-function', 'b823ed1e418101032fa01374edc9a436e54e3ed4'),
    (57, '0057-s3-multipart-uploads-metadata', 'f127886e00d1b374fadbc7c6b31e09336aad5287'),
    (58, '0058-operation-ergonomics', '00ca5d483b3fe0d522133d9002ccc5df98365120'),
    (59, '0059-drop-unused-functions', '38456f13e39691c2bbb4b5151d0d1cdbabd4a8c4'),
    (60, '0060-optimize-existing-functions-again', 'db35e1c91a9201e59f4fef8d972c2f277d68b157'),
    (61, '0061-mark-filename-immutable', 'fe0096517ae9d60aaec1d110172ba9036dc66bb7'),
    (62, '0062-object-versioning-core', '0b855f00ff3be0bfca91efee02a9858912491a9a'),
    (63, '0063-fix-search-name-relative-to-prefix', 'c7485e417624f795ce8bb2da21927f48e088904d')
) as recorded (id, name, hash)
order by id
on conflict do nothing;

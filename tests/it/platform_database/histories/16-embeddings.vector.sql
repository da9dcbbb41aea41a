-- Documents with embeddings, an index, and search by similarity.
create extension if not exists vector with schema extensions;
create table public.documents (id bigserial primary key, content text, metadata jsonb, embedding extensions.vector(3));
create function public.match_documents(query_embedding vector(3), match_count int default null, filter jsonb default '{}')
returns table (id bigint, content text, similarity float) language plpgsql as $$
#variable_conflict use_column
begin
    return query select id, content, 1 - (documents.embedding <=> query_embedding)
    from public.documents where metadata @> filter order by documents.embedding <=> query_embedding limit match_count;
end
$$;
-- migration
create index on public.documents using hnsw (embedding vector_cosine_ops);
create index documents_lists on public.documents using ivfflat (embedding vector_l2_ops) with (lists = 10);
insert into public.documents (content, metadata, embedding) values ('a', '{}', '[1,2,3]');
select * from public.match_documents('[1,2,3]', 1);

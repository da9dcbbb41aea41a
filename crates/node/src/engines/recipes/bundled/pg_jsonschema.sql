-- Validation by JSON Schema, drafts 7 to 2020-12. The interface is that of pg_jsonschema 0.3. Keywords whose rules are not
-- implemented are errors, so that no instance is accepted by accident: $dynamicRef, $recursiveRef, unevaluatedProperties,
-- unevaluatedItems, and references to other documents. `format` and contents are annotations and not checked.

-- Returns the subschema of `root` that a reference names: `#` or `#/path`.
create function @extschema@._jsonschema_reference(root jsonb, reference text) returns jsonb
language plpgsql immutable parallel safe
as $$
declare
    found_schema jsonb := root;
    segment text;
begin
    if reference <> '#' and reference !~ '^#/' then
        raise exception 'reference "%" of the schema is not supported', reference
            using errcode = 'feature_not_supported', hint = 'References begin with "#/".';
    end if;
    if reference ~ '%[0-9A-Fa-f]{2}' then
        raise exception 'encoded characters in reference "%" are not supported', reference
            using errcode = 'feature_not_supported';
    end if;
    foreach segment in array string_to_array(substr(reference, 3), '/') loop
        segment := replace(replace(segment, '~1', '/'), '~0', '~');
        found_schema := found_schema #> array[segment];
    end loop;
    if found_schema is null then
        raise exception 'reference "%" of the schema leads nowhere', reference using errcode = 'invalid_parameter_value';
    end if;
    return found_schema;
end
$$;

-- Returns the mistakes of a schema itself.
create function @extschema@._jsonschema_mistakes(schema jsonb, path text, depth integer) returns text[]
language plpgsql immutable parallel safe
as $$
declare
    mistakes text[] := '{}';
    keyword text;
    value jsonb;
    kind text;
    child record;
    place text;
begin
    if depth > 64 then
        raise exception 'the schema is nested too deeply' using errcode = 'program_limit_exceeded';
    end if;
    if jsonb_typeof(schema) = 'boolean' then
        return mistakes;
    elsif jsonb_typeof(schema) <> 'object' then
        return array[format('%s: a schema is an object or a boolean', path)];
    end if;
    for keyword, value in select * from jsonb_each(schema) loop
        kind := jsonb_typeof(value);
        place := path || '/' || keyword;
        if keyword = 'type' then
            for child in select item from jsonb_array_elements(case kind when 'array' then value else jsonb_build_array(value) end)
                as items (item)
            loop
                if child.item not in ('"null"', '"boolean"', '"object"', '"array"', '"number"', '"string"', '"integer"') then
                    mistakes := mistakes || format('%s: %s is not a type', place, child.item);
                end if;
            end loop;
        elsif keyword in ('properties', 'patternProperties', '$defs', 'definitions', 'dependentSchemas') then
            if kind <> 'object' then
                mistakes := mistakes || format('%s: not an object', place);
                continue;
            end if;
            for child in select name, subschema from jsonb_each(value) as members (name, subschema) loop
                mistakes := mistakes || @extschema@._jsonschema_mistakes(child.subschema, place || '/' || child.name, depth + 1);
            end loop;
        elsif keyword in ('allOf', 'anyOf', 'oneOf', 'prefixItems') or (keyword = 'items' and kind = 'array') then
            if kind <> 'array' or (jsonb_array_length(value) = 0 and keyword <> 'items') then
                mistakes := mistakes || format('%s: not an array with elements', place);
                continue;
            end if;
            for child in select position, subschema from jsonb_array_elements(value) with ordinality as members (subschema, position)
            loop
                mistakes := mistakes || @extschema@._jsonschema_mistakes(child.subschema, place || '/' || child.position, depth + 1);
            end loop;
        elsif keyword in ('items', 'additionalItems', 'additionalProperties', 'contains', 'propertyNames', 'not', 'if', 'then', 'else')
        then
            mistakes := mistakes || @extschema@._jsonschema_mistakes(value, place, depth + 1);
        elsif keyword in ('minLength', 'maxLength', 'minItems', 'maxItems', 'minProperties', 'maxProperties', 'minContains', 'maxContains')
        then
            if kind <> 'number' or value::numeric < 0 or value::numeric % 1 <> 0 then
                mistakes := mistakes || format('%s: not a count', place);
            end if;
        elsif keyword in ('minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum') then
            if kind <> 'number' then
                mistakes := mistakes || format('%s: not a number', place);
            end if;
        elsif keyword = 'multipleOf' then
            if kind <> 'number' or value::numeric <= 0 then
                mistakes := mistakes || format('%s: not a positive number', place);
            end if;
        elsif keyword = 'required' then
            if kind <> 'array' or jsonb_path_exists(value, '$[*] ? (@.type() != "string")') then
                mistakes := mistakes || format('%s: not an array of strings', place);
            end if;
        elsif keyword = 'enum' then
            if kind <> 'array' then
                mistakes := mistakes || format('%s: not an array', place);
            end if;
        elsif keyword in ('pattern', '$ref') then
            if kind <> 'string' then
                mistakes := mistakes || format('%s: not a string', place);
            end if;
        elsif keyword = 'uniqueItems' then
            if kind <> 'boolean' then
                mistakes := mistakes || format('%s: not a boolean', place);
            end if;
        elsif keyword in ('dependencies', 'dependentRequired') then
            if kind <> 'object' then
                mistakes := mistakes || format('%s: not an object', place);
            end if;
        end if;
    end loop;
    return mistakes;
end
$$;

-- Returns the violations of objects: their members.
create function @extschema@._jsonschema_object_errors(root jsonb, schema jsonb, instance jsonb, path text, depth integer)
returns text[]
language plpgsql immutable parallel safe
as $$
declare
    violations text[] := '{}';
    member record;
    rule record;
    is_known boolean;
    members integer := (select count(*) from jsonb_object_keys(instance));
begin
    for rule in select name from jsonb_array_elements_text(coalesce(schema -> 'required', '[]')) as names (name) loop
        if not instance ? rule.name then
            violations := violations || format('%s: "%s" is a required property', path, rule.name);
        end if;
    end loop;
    if members < (schema ->> 'minProperties')::numeric then
        violations := violations || format('%s: has less than %s properties', path, schema ->> 'minProperties');
    end if;
    if members > (schema ->> 'maxProperties')::numeric then
        violations := violations || format('%s: has more than %s properties', path, schema ->> 'maxProperties');
    end if;
    for member in select name, value from jsonb_each(instance) as members (name, value) loop
        is_known := false;
        if (schema -> 'properties') ? member.name then
            is_known := true;
            violations := violations || @extschema@._jsonschema_errors(
                root, schema -> 'properties' -> member.name, member.value, path || '/' || member.name, depth + 1);
        end if;
        for rule in select pattern, subschema from jsonb_each(coalesce(schema -> 'patternProperties', '{}')) as rules (pattern, subschema)
        loop
            if member.name ~ rule.pattern then
                is_known := true;
                violations := violations || @extschema@._jsonschema_errors(
                    root, rule.subschema, member.value, path || '/' || member.name, depth + 1);
            end if;
        end loop;
        if not is_known and schema ? 'additionalProperties' then
            if schema -> 'additionalProperties' = 'false' then
                violations := violations || format('%s: additional property "%s" is not allowed', path, member.name);
            else
                violations := violations || @extschema@._jsonschema_errors(
                    root, schema -> 'additionalProperties', member.value, path || '/' || member.name, depth + 1);
            end if;
        end if;
        if schema ? 'propertyNames' then
            violations := violations || @extschema@._jsonschema_errors(
                root, schema -> 'propertyNames', to_jsonb(member.name), path || '/' || member.name, depth + 1);
        end if;
    end loop;
    for rule in
        select name, needed from jsonb_each(coalesce(schema -> 'dependencies', '{}')) as rules (name, needed)
        union all select * from jsonb_each(coalesce(schema -> 'dependentRequired', '{}'))
        union all select * from jsonb_each(coalesce(schema -> 'dependentSchemas', '{}'))
    loop
        if not instance ? rule.name then
            continue;
        elsif jsonb_typeof(rule.needed) <> 'array' then
            violations := violations || @extschema@._jsonschema_errors(root, rule.needed, instance, path, depth + 1);
        elsif not instance ?& array(select jsonb_array_elements_text(rule.needed)) then
            violations := violations || format('%s: "%s" needs the properties %s', path, rule.name, rule.needed);
        end if;
    end loop;
    return violations;
end
$$;

-- Returns the violations of arrays: their elements.
create function @extschema@._jsonschema_array_errors(root jsonb, schema jsonb, instance jsonb, path text, depth integer)
returns text[]
language plpgsql immutable parallel safe
as $$
declare
    violations text[] := '{}';
    -- Schemas by position, and the one of all further elements.
    listed jsonb := case when schema ? 'prefixItems' then schema -> 'prefixItems'
        when jsonb_typeof(schema -> 'items') = 'array' then schema -> 'items' else '[]' end;
    further jsonb := case when jsonb_typeof(schema -> 'items') = 'array' then schema -> 'additionalItems' else schema -> 'items' end;
    subschema jsonb;
    matching integer := 0;
    elements integer := jsonb_array_length(instance);
begin
    if elements < (schema ->> 'minItems')::numeric then
        violations := violations || format('%s: has less than %s items', path, schema ->> 'minItems');
    end if;
    if elements > (schema ->> 'maxItems')::numeric then
        violations := violations || format('%s: has more than %s items', path, schema ->> 'maxItems');
    end if;
    if schema -> 'uniqueItems' = 'true'
        and elements > (select count(distinct element) from jsonb_array_elements(instance) as items (element))
    then
        violations := violations || format('%s: has equal items', path);
    end if;
    for position in 0 .. elements - 1 loop
        subschema := coalesce(listed -> position, further);
        if subschema is not null then
            violations := violations || @extschema@._jsonschema_errors(
                root, subschema, instance -> position, path || '/' || position, depth + 1);
        end if;
        if schema ? 'contains'
            and @extschema@._jsonschema_errors(root, schema -> 'contains', instance -> position, path, depth + 1) = '{}'
        then
            matching := matching + 1;
        end if;
    end loop;
    if schema ? 'contains' then
        if matching < coalesce((schema ->> 'minContains')::numeric, 1) then
            violations := violations || format('%s: too few items match "contains"', path);
        end if;
        if matching > (schema ->> 'maxContains')::numeric then
            violations := violations || format('%s: too many items match "contains"', path);
        end if;
    end if;
    return violations;
end
$$;

-- Returns the violations of numbers and strings.
create function @extschema@._jsonschema_scalar_errors(schema jsonb, instance jsonb, path text) returns text[]
language plpgsql immutable parallel safe
as $$
declare
    violations text[] := '{}';
    number numeric;
    characters integer;
begin
    if jsonb_typeof(instance) = 'number' then
        number := instance::numeric;
        if number < (schema ->> 'minimum')::numeric then
            violations := violations || format('%s: %s is less than the minimum of %s', path, number, schema ->> 'minimum');
        end if;
        if number > (schema ->> 'maximum')::numeric then
            violations := violations || format('%s: %s is greater than the maximum of %s', path, number, schema ->> 'maximum');
        end if;
        if number <= (schema ->> 'exclusiveMinimum')::numeric then
            violations := violations || format('%s: %s is not greater than %s', path, number, schema ->> 'exclusiveMinimum');
        end if;
        if number >= (schema ->> 'exclusiveMaximum')::numeric then
            violations := violations || format('%s: %s is not less than %s', path, number, schema ->> 'exclusiveMaximum');
        end if;
        if number % (schema ->> 'multipleOf')::numeric <> 0 then
            violations := violations || format('%s: %s is not a multiple of %s', path, number, schema ->> 'multipleOf');
        end if;
    elsif jsonb_typeof(instance) = 'string' then
        characters := length(instance #>> '{}');
        if characters < (schema ->> 'minLength')::numeric then
            violations := violations || format('%s: is shorter than %s characters', path, schema ->> 'minLength');
        end if;
        if characters > (schema ->> 'maxLength')::numeric then
            violations := violations || format('%s: is longer than %s characters', path, schema ->> 'maxLength');
        end if;
        if (instance #>> '{}') !~ (schema ->> 'pattern') then
            violations := violations || format('%s: does not match "%s"', path, schema ->> 'pattern');
        end if;
    end if;
    return violations;
end
$$;

-- Returns the violations of an instance, in the form `path: reason`.
create function @extschema@._jsonschema_errors(root jsonb, schema jsonb, instance jsonb, path text, depth integer)
returns text[]
language plpgsql immutable parallel safe
as $$
declare
    violations text[] := '{}';
    kind text := jsonb_typeof(instance);
    accepted integer;
    types jsonb;
begin
    if depth > 64 then
        raise exception 'the schema or the instance is nested too deeply' using errcode = 'program_limit_exceeded';
    end if;
    if schema = 'true' then
        return violations;
    elsif schema = 'false' then
        return array[format('%s: no value is allowed', path)];
    end if;
    if schema ?| array['$dynamicRef', '$recursiveRef', 'unevaluatedProperties', 'unevaluatedItems'] then
        raise exception 'the schema has a keyword that is not supported: $dynamicRef, $recursiveRef or unevaluated…'
            using errcode = 'feature_not_supported';
    end if;
    if schema ? '$ref' then
        violations := violations || @extschema@._jsonschema_errors(
            root, @extschema@._jsonschema_reference(root, schema ->> '$ref'), instance, path, depth + 1);
    end if;
    if schema ? 'type' then
        types := case jsonb_typeof(schema -> 'type') when 'array' then schema -> 'type' else jsonb_build_array(schema -> 'type') end;
        if not types ? kind and not (types ? 'integer' and kind = 'number' and
            case when kind = 'number' then instance::numeric % 1 = 0 else false end)
        then
            return violations || format('%s: %s is not of type %s', path, instance, schema -> 'type');
        end if;
    end if;
    if schema ? 'enum' and not exists (select from jsonb_array_elements(schema -> 'enum') as items (element) where element = instance)
    then
        violations := violations || format('%s: %s is not one of %s', path, instance, schema -> 'enum');
    end if;
    if schema ? 'const' and schema -> 'const' <> instance then
        violations := violations || format('%s: %s is not %s', path, instance, schema -> 'const');
    end if;
    violations := violations || case kind
        when 'object' then @extschema@._jsonschema_object_errors(root, schema, instance, path, depth)
        when 'array' then @extschema@._jsonschema_array_errors(root, schema, instance, path, depth)
        else @extschema@._jsonschema_scalar_errors(schema, instance, path)
    end;
    for position in 0 .. coalesce(jsonb_array_length(schema -> 'allOf'), 0) - 1 loop
        violations := violations || @extschema@._jsonschema_errors(root, schema -> 'allOf' -> position, instance, path, depth + 1);
    end loop;
    if schema ? 'anyOf' and not exists (
        select from jsonb_array_elements(schema -> 'anyOf') as items (subschema)
        where @extschema@._jsonschema_errors(root, subschema, instance, path, depth + 1) = '{}')
    then
        violations := violations || format('%s: is not valid under any of the schemas of "anyOf"', path);
    end if;
    if schema ? 'oneOf' then
        accepted := (
            select count(*) from jsonb_array_elements(schema -> 'oneOf') as items (subschema)
            where @extschema@._jsonschema_errors(root, subschema, instance, path, depth + 1) = '{}');
        if accepted <> 1 then
            violations := violations || format('%s: is valid under %s schemas of "oneOf" instead of one', path, accepted);
        end if;
    end if;
    if schema ? 'not' and @extschema@._jsonschema_errors(root, schema -> 'not', instance, path, depth + 1) = '{}' then
        violations := violations || format('%s: is valid under the schema of "not"', path);
    end if;
    if schema ? 'if' then
        if @extschema@._jsonschema_errors(root, schema -> 'if', instance, path, depth + 1) = '{}' then
            violations := violations
                || @extschema@._jsonschema_errors(root, coalesce(schema -> 'then', 'true'), instance, path, depth + 1);
        else
            violations := violations
                || @extschema@._jsonschema_errors(root, coalesce(schema -> 'else', 'true'), instance, path, depth + 1);
        end if;
    end if;
    return violations;
end
$$;

create function @extschema@.jsonschema_is_valid(schema json) returns boolean
language sql immutable strict parallel safe
as $$ select @extschema@._jsonschema_mistakes(schema::jsonb, '#', 0) = '{}' $$;

create function @extschema@._jsonschema_validate(schema jsonb, instance jsonb) returns text[]
language plpgsql immutable strict parallel safe
as $$
declare
    mistakes text[] := @extschema@._jsonschema_mistakes(schema, '#', 0);
begin
    if mistakes <> '{}' then
        raise exception 'invalid JSON schema: %', mistakes[1] using errcode = 'invalid_parameter_value';
    end if;
    return @extschema@._jsonschema_errors(schema, schema, instance, '', 0);
end
$$;

create function @extschema@.json_matches_schema(schema json, instance json) returns boolean
language sql immutable strict parallel safe
as $$ select @extschema@._jsonschema_validate(schema::jsonb, instance::jsonb) = '{}' $$;

create function @extschema@.jsonb_matches_schema(schema json, instance jsonb) returns boolean
language sql immutable strict parallel safe
as $$ select @extschema@._jsonschema_validate(schema::jsonb, instance) = '{}' $$;

create function @extschema@.jsonschema_validation_errors(schema json, instance json) returns text[]
language sql immutable strict parallel safe
as $$ select @extschema@._jsonschema_validate(schema::jsonb, instance::jsonb) $$;
